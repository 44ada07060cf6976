"""CPU settings: the library for fp32 matrix products, and whether the CPU has bf16 products."""

import functools
from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")
# How x86 (the first two) and ARM CPUs name bf16 products in CPUINFO.
BF16_PRODUCTS = {"avx512_bf16", "amx_bf16", "bf16"}


def configure_cpu() -> None:
    """Take the faster library for fp32 products: oneDNN on AMD's CPUs, torch's default, MKL, on
    Intel's.

    MKL reaches less than half of oneDNN's speed on the first, and is a tenth to two times faster on
    the second. The maker decides and not a timing, so that a machine always computes the same bits.
    fp32-accurate: AMD's CPUs have none of the tiles (AMX) with which this setting would allow bf16
    products.
    """
    if "AuthenticAMD" in _cpu_info():
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


@functools.cache
def has_bf16_products() -> bool:
    """Whether the CPU multiplies bf16 itself, as far as the system tells."""
    return not BF16_PRODUCTS.isdisjoint(_cpu_info())


def _cpu_info() -> set[str]:
    return set(CPUINFO.read_text(encoding="utf-8").split()) if CPUINFO.exists() else set()
