"""Peaks of this device: its best matrix product and its copy bandwidth, which all shares refer to."""

import functools

import torch

from ds_minimodel.ops import linear
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.planning.calibration import CLOCKS, Clock, seconds_of

# (rows, inner, columns): the products of RoBERTa-base at 2,048 tokens, and larger ones.
CPU_SHAPES = ((2048, 768, 3072), (2048, 3072, 768), (2048, 768, 768), (1024, 1024, 1024), (308, 768, 50000))
GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 768, 3072), (16384, 3072, 768))
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}


def device() -> torch.device:
    """Device of this process: the GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def matmul_peak(precision: str, clock: Clock) -> float:
    """FLOP/s of the fastest of a few products of random matrices, as ops.linear makes them."""
    where = device()
    if where.type == "cpu":
        configure_cpu()
    best = 0.0
    for rows, inner, columns in GPU_SHAPES if where.type == "cuda" else CPU_SHAPES:
        a = torch.randn(rows, inner, device=where, dtype=DTYPES[precision])
        b = torch.randn(columns, inner, device=where, dtype=DTYPES[precision])
        best = max(best, 2 * rows * inner * columns / seconds_of(functools.partial(linear, a, b), clock))
    return best


def copy_bandwidth(clock: Clock) -> float:
    """Bytes read and written a second by a large copy within the device's memory."""
    where = device()
    source = torch.randint(256, (COPY_BYTES[where.type],), dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds_of(lambda: target.copy_(source), clock)


def peaks(precision: str, clock: str) -> dict[str, float]:
    """{"matmul": FLOP/s, "copy": bytes a second} of this device."""
    return {"matmul": matmul_peak(precision, CLOCKS[clock]), "copy": copy_bandwidth(CLOCKS[clock])}
