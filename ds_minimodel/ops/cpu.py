"""Settings of torch that make a CPU fast."""

from pathlib import Path

import torch

CPUINFO = Path("/proc/cpuinfo")


def configure_cpu():
    """Take the faster library for fp32 products: oneDNN on AMD's CPUs, torch's default, MKL, on Intel's.

    MKL reaches less than half of oneDNN's speed on the first, and is a tenth to two times faster on the second.
    By the maker and not by timing, so that a machine always computes the same bits. fp32-accurate: AMD's CPUs
    have none of the tiles (AMX) with which this setting would allow bf16 products.
    """
    if _is_made_by_amd():
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def _is_made_by_amd():
    return CPUINFO.exists() and "AuthenticAMD" in CPUINFO.read_text(encoding="utf-8")
