"""GPUs: whether one is to be used, and whether the build of torch has code for it."""

import os
import re
from collections.abc import Iterable, Sequence

import torch

from ds_minimodel.common.errors import UserError

# The lowest compute capability that CUDA 13 knows.
MIN_CUDA_13 = (7, 5)
# As scripts/environment.sh takes it; torch has builds for CUDA 12.6 up to 2.14.
CUDA_12_BUILD = "torch==2.13.0+cu126"


def device() -> torch.device:
    """Return where a rank computes: a GPU that torch sees, unless DS_ACCELERATOR=cpu is set."""
    on_gpu = os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def check_gpus(first: int | None = None) -> None:
    """Raise UserError, which says what to install, where torch has no code for a GPU here.

    Args:
        first: how many GPUs are looked at; None: all.
    """
    refuse(why_no_code(gpu) for gpu in range(torch.cuda.device_count())[:first])


def refuse(reasons: Iterable[str]) -> None:
    """Raise UserError with the first reason that is not empty, if there is one."""
    for reason in reasons:
        if reason:
            raise UserError(reason)


def why_no_code(device: torch.device | int) -> str:
    """Say that torch has no code for this GPU, and what to install; "" where it has."""
    gpu = torch.cuda.get_device_properties(device)
    architectures = torch.cuda.get_arch_list()
    capability = gpu.major, gpu.minor
    if has_code(architectures, capability):
        return ""
    if capability < MIN_CUDA_13:
        what = (
            f"install the build for CUDA 12.6: uv pip install --torch-backend=cu126 {CUDA_12_BUILD}"
        )
    else:
        what = "uninstall torch and install PyPI's, the build for CUDA 13"
    return (
        f"{gpu.name} is sm_{gpu.major}{gpu.minor}, and torch {torch.__version__} has code for "
        f"{', '.join(architectures)} alone; {what}, then ds_minimodel again for its kernels; "
        "CUDA_VISIBLE_DEVICES= hides a GPU"
    )


def has_code(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Return whether code for `architectures` runs on a GPU.

    sm_86 runs on 8.6 and later ones of its generation, compute_80 (PTX) on 8.0 and all later ones,
    sm_100f on 10.0 and later ones of its generation, sm_90a on 9.0 alone. Names of another kind, or
    none, say nothing: True.

    Args:
        architectures: as torch.cuda.get_arch_list() names them.
        capability: the GPU's compute capability.
    """
    names = re.findall(r"\b(sm|compute)_(\d+)(\d)([af]?)\b", " ".join(architectures))
    for kind, major, minor, suffix in names:
        target = (int(major), int(minor))
        if target == capability:
            return True
        is_ptx = kind == "compute" and suffix == ""
        same_generation = suffix != "a" and target[0] == capability[0]
        if target < capability and (is_ptx or same_generation):
            return True
    return not names
