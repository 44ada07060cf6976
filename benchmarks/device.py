"""This device: its name, its clocks, and its peaks, the best matrix product and the copy bandwidth,
which all shares refer to.
"""

import functools
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ds_minimodel.ops import linear
from ds_minimodel.ops.cpu import configure_cpu
from ds_minimodel.ops.precision import DTYPES

Clock = Callable[[], float]  # seconds
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
# (rows, inner, columns): the products of RoBERTa-base at 2,048 tokens, and larger ones.
CPU_SHAPES = (
    (2048, 768, 3072),
    (2048, 3072, 768),
    (2048, 768, 768),
    (1024, 1024, 1024),
    (308, 768, 50000),
)
GPU_SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 768, 3072), (16384, 3072, 768))
COPY_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}


def device() -> torch.device:
    """Device of this process: the GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Name of this process's device: "NVIDIA H100 …", "CPU Intel(R) Xeon(R) …"."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"CPU {line.partition(':')[2].strip()}"
    return f"CPU {platform.machine()}"


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object], clock: Clock, repeats: int = 3) -> float:
    """Least seconds of one call, after a call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        function()
        synchronize()
        times.append(clock() - start)
    return min(times)


def matmul_peak(precision: str, clock: Clock) -> float:
    """FLOP/s of the fastest of a few products of random matrices, as ops.linear makes them."""
    where = device()
    if where.type == "cpu":
        configure_cpu()
    best = 0.0
    for rows, inner, columns in GPU_SHAPES if where.type == "cuda" else CPU_SHAPES:
        a = torch.randn(rows, inner, device=where, dtype=DTYPES[precision])
        b = torch.randn(columns, inner, device=where, dtype=DTYPES[precision])
        best = max(
            best, 2 * rows * inner * columns / seconds_of(functools.partial(linear, a, b), clock)
        )
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
