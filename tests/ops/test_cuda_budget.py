"""What the CUDA kernels may cost on each architecture, by what NVRTC's compiler and assembler say of them.

A kernel that moves memory at its speed needs enough bytes under way, that is enough warps with enough registers, whole
128-bit accesses, and nothing spilt. So a regression shows without a GPU.
"""

import importlib
import itertools
import re
import sys
from collections import Counter
from functools import cache

import pytest
from shim import CSRC

sys.path.insert(0, str(CSRC / "cuda"))
device_code = importlib.import_module("compile_device_code")

ARCHITECTURES = ["sm_70", "sm_75", "sm_80", "sm_90"]
# Warps that a processor holds; and bytes that have to be under way in one of them to keep the memory busy: bandwidth
# times latency over processors (V100 0.9 TB/s, 0.5 us, 80; T4 0.3, 0.5, 40; A100 2.0, 0.6, 108; H200 4.8, 0.8, 132).
WARPS = {"sm_70": 64, "sm_75": 32, "sm_80": 64, "sm_90": 64}
BYTES = {"sm_70": 5_600, "sm_75": 3_800, "sm_80": 11_100, "sm_90": 29_100}
REGISTERS = {  # of 16-bit and of 32-bit elements, for the widest rows
    "norm_forward": (72, 80),
    "norm_backward": (96, 96),
    "softmax_forward": (64, 72),
    "softmax_backward": (96, 112),
    "norm_parameter_sums": (64, 56),
    "gelu_forward": (64, 56),
    "gelu_backward": (64, 56),
    "cross_entropy": (80, 80),
    "dropout_rows": (32, 40),
}
SHARED = {"norm_parameter_sums": 16384, "gelu_backward": 8192, "cross_entropy": 512}  # bytes, static
THREADS = {"cross_entropy": 384, "gelu_forward": 256, "gelu_backward": 256, "norm_parameter_sums": 256}  # else 128
# Packs that a lane has under way at once: matrices read before anything is written, times packs of a row in registers.
MATRICES = {"norm_forward": 2, "norm_backward": 2, "softmax_forward": 1, "softmax_backward": 2}
AHEAD = {"norm_parameter_sums": 8, "gelu_forward": 4, "gelu_backward": 2, "dropout_rows": 1}


@cache
def compiled(architecture):
    """{(kernel, dtype, pack, other arguments): its Budget} of all kernels."""
    try:
        return {parts(name): found for name, found in device_code.compile_all(architecture).items()}
    except SystemExit:
        pytest.skip("NVRTC is not installed (extra device-code)")


def parts(expression):
    name, arguments = re.fullmatch(r"dsmm::cuda::(\w+)<(.*)>", expression).groups()
    dtype, pack, *others = arguments.split(", ")
    return name, dtype, int(pack), tuple(others)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_registers_and_shared_memory(architecture):
    for (name, dtype, pack, others), found in compiled(architecture).items():
        assert found.spilt_bytes == 0, (name, dtype, pack, others)
        assert found.shared_bytes <= SHARED.get(name, 0), (name, dtype, pack, others)
        assert found.registers <= REGISTERS[name][dtype == "float"], (name, dtype, pack, others, found.registers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_in_packs_are_read_and_written_in_128_bits(architecture):
    for (name, dtype, pack, others), found in compiled(architecture).items():
        if pack == 1:
            continue
        accesses = Counter(re.findall(r"((?:ld|st)\.global)\S*?(\.v4|\.v2)?\.[a-z](\d+)", found.ptx))
        assert accesses["ld.global", ".v4", "32"], (name, dtype, others)
        narrow = sum(number for (_, vector, bits), number in accesses.items() if not vector and bits in ("8", "16"))
        # A target's logit is an element of its own.
        assert narrow <= (int(others[0]) if name == "cross_entropy" else 0), (name, dtype, others, accesses)
        assert not any(vector == ".v2" for _, vector, _ in accesses), (name, dtype, others, accesses)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_up_to_1024_wide_stay_in_registers(architecture):
    for (name, dtype, _, others), found in compiled(architecture).items():
        if name in MATRICES and others != ("0",):
            assert ".shared" not in found.ptx and ".local" not in found.ptx, (name, dtype, others)
    for name, dtype in itertools.product(MATRICES, device_code.PACKS):
        floats = [int(o[0]) * pack for n, d, pack, o in compiled(architecture) if (n, d) == (name, dtype)]
        assert max(floats) == 1024 // 32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_enough_bytes_are_under_way(architecture):
    for (name, dtype, pack, others), found in compiled(architecture).items():
        if name in MATRICES:
            ahead = MATRICES[name] * int(others[0])
        else:
            ahead = int(others[0]) if name == "cross_entropy" else AHEAD[name]
        # Rows that are too wide, or not in packs, may take longer; so may few rows of logits, one a block.
        if pack == 1 or not ahead or (name, ahead) == ("cross_entropy", 1):
            continue
        warps = THREADS.get(name, 128) // 32
        registers = -(-found.registers // 8) * 8 * 32 * warps
        blocks = min(65536 // registers, WARPS[architecture] // warps)
        assert blocks * warps * ahead * 16 * 32 >= 0.8 * BYTES[architecture], (name, dtype, others, found.registers)
