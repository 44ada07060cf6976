"""CPU settings: the library for fp32 matrix products, and whether the CPU has bf16 products."""

import functools
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
# How CPUINFO names bf16 products: on x86 by the first two, on ARM by the third.
BF16_PRODUCTS = {"avx512_bf16", "amx_bf16", "bf16"}


def configure_cpu() -> None:
    """Take the faster library for fp32 products: oneDNN on AMD's CPUs, MKL on Intel's.

    MKL, torch's default, reaches less than half of oneDNN's speed on the first, and is a tenth to
    two times faster on the second. The maker decides and not a timing, so that a machine always
    computes the same bits.
    """
    if "AuthenticAMD" in _cpu_info():
        # The setting makes torch call oneDNN. Products stay in fp32: bf16 ones would need tiles
        # (AMX), which no CPU of AMD's has.
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


@functools.cache
def has_bf16_products() -> bool:
    """Return whether the CPU multiplies bf16 itself, as far as the system tells."""
    return not BF16_PRODUCTS.isdisjoint(_cpu_info())


def _cpu_info() -> set[str]:
    """Return the words of CPUINFO; none where the system has no such file."""
    return set(CPUINFO.read_text(encoding="utf-8").split()) if CPUINFO.exists() else set()
