"""Report on this machine: versions, devices, kernels, launchers."""

import importlib.metadata
import os
import platform
import shutil
import sys

import torch

from ds_minimodel import __version__
from ds_minimodel.models import BODIES
from ds_minimodel.ops.cpu import has_bf16_products
from ds_minimodel.ops.loading import OPS, backend
from ds_minimodel.ops.precision import DTYPES, resolve_precision

PACKAGES = "torch deepspeed numpy sentencepiece safetensors tensorboard mpi4py apex scikit-learn".split()
PACKAGES += "matplotlib lxml zstandard transformers".split()
LAUNCHERS = ("deepspeed", "torchrun", "mpirun", "pdsh", "ssh")


def report() -> str:
    """Lines of `name: what was found`."""
    lines = [f"ds_minimodel: {__version__}, Python {platform.python_version()}"]
    lines += [f"{name}: {_version(name)}" for name in PACKAGES]
    bf16 = "its own" if has_bf16_products() else "made in fp32"
    lines.append(
        f"CPU: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads, bf16 products {bf16}"
    )
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    lines.append(
        "GPUs: "
        + (
            ", ".join(
                f"{device.name} (sm_{device.major}{device.minor}, {device.total_memory / 2**30:.0f} GiB)"
                for device in devices
            )
            or "none"
        )
    )
    device = "cuda" if devices else "cpu"
    dtype = DTYPES[resolve_precision("auto", torch.device(device))]
    lines += [f"op {name}: {backend(name, device, dtype)}" for name in OPS]
    for kind in BODIES.values():
        others = f"; by torch's own operators: {', '.join(kind.without_kernels)}" if kind.without_kernels else ""
        lines.append(f"body {kind.name}: by the operators above{others}")
    # Beside this python too: the environment that it is of may not be activated.
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    lines += [f"launcher {name}: {shutil.which(name, path=places) or 'not found'}" for name in LAUNCHERS]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
