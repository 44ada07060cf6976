"""GPUs: whether one is to be used, and whether the build of torch has code for it."""

import os
import re
from collections.abc import Iterable, Sequence

import torch

from ds_minimodel.common.errors import UserError

CUDA_13 = (7, 5)  # the lowest compute capability that it knows
# As scripts/environment.sh takes it; torch has CUDA 12.6 builds up to 2.14
CUDA_12_BUILD = "torch==2.13.0+cu126"


def device() -> torch.device:
    """Where a rank computes: on a GPU that torch sees, unless DS_ACCELERATOR=cpu says otherwise."""
    on_gpu = os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def check_gpus(first: int | None = None) -> None:
    """UserError, which says what to install, where torch has no code for a GPU here, or for one of
    the first.
    """
    refuse(map(why_no_code, range(torch.cuda.device_count())[:first]))


def refuse(reasons: Iterable[str]) -> None:
    """UserError with the first of `why_no_code`, if there is any."""
    for reason in filter(None, reasons):
        raise UserError(reason)


def why_no_code(device: torch.device | int) -> str:
    """That torch has no code for this GPU, and what to install; empty where it has."""
    gpu = torch.cuda.get_device_properties(device)
    architectures = torch.cuda.get_arch_list()
    capability = gpu.major, gpu.minor
    if has_code(architectures, capability):
        return ""
    if capability < CUDA_13:
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
    """Whether code for `architectures`, as torch.cuda.get_arch_list() names them, runs on a GPU of
    `capability`.

    sm_86 runs on 8.6 and later ones of its generation, compute_80 (PTX) on 8.0 and all later ones,
    sm_100f on 10.0 and later ones of its generation, sm_90a on 9.0 alone. Names of another kind, or
    none, say nothing: True.
    """
    known = re.findall(r"\b(sm|compute)_(\d+)(\d)([af]?)\b", " ".join(architectures))
    return not known or any(
        (int(major), int(minor)) == capability
        or (kind == "compute" and not only and (int(major), int(minor)) < capability)
        or (only != "a" and int(major) == capability[0] and int(minor) < capability[1])
        for kind, major, minor, only in known
    )
