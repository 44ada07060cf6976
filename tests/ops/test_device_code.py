"""What the CUDA kernels cost on each architecture, by what NVRTC's compiler says of them.

A kernel that moves memory at its speed needs whole 128-bit accesses, rows in registers and nothing
spilt. So a regression shows without a GPU; how fast the kernels are, a simulated one says
(scripts/simulated_gpu). All kernels of fp32 and fp16 are compiled for one architecture; for the
others, and of bf16, those of the widest and the narrowest rows in registers.
"""

import importlib
import re
import sys
from collections import Counter
from functools import cache

import pytest
from shim import CSRC

pytestmark = pytest.mark.long

sys.path.insert(0, str(CSRC / "cuda"))
device_code = importlib.import_module("compile_device_code")

WHOLLY = "sm_90"


def names_for(architecture):
    """Name expressions of the kernels that are compiled for an architecture."""
    for expression in device_code.instances():
        kernel = device_code.Kernel.parse(expression)
        is_bf16 = kernel.dtype == "dsmm::bf16"
        if architecture == WHOLLY and not is_bf16:
            yield expression
            continue
        # The widest and the narrowest rows; bf16 is compiled for one architecture.
        is_at_an_end = not kernel.in_registers or kernel.others[0] in ("1", "4", "8")
        if kernel.ahead and is_at_an_end and (architecture == WHOLLY or not is_bf16):
            yield expression


@cache
def compiled(architecture):
    """The budget of each kernel."""
    try:
        return device_code.compile_all(architecture, names_for(architecture))
    except SystemExit:
        pytest.skip("NVRTC is not installed (extra device-code)")


@pytest.fixture(params=device_code.GPUS)
def architecture(request):
    return request.param


def test_nothing_is_spilt(architecture):
    assert [kernel for kernel, found in compiled(architecture).items() if found.spilt_bytes] == []


def test_rows_in_packs_are_read_and_written_in_128_bits(architecture):
    for kernel, found in compiled(architecture).items():
        if kernel.pack == 1:
            continue
        # {(load or store, ".v4" or ".v2" or "", bits of an element): count}
        accesses = Counter(
            re.findall(r"((?:ld|st)\.global)\S*?(\.v4|\.v2)?\.[a-z](\d+)", found.ptx)
        )
        shown = kernel, accesses
        assert accesses["ld.global", ".v4", "32"] >= max(kernel.ahead, 1), shown
        if device_code.TRAFFIC[kernel.name].writes:
            assert accesses["st.global", ".v4", "32"], shown
        narrow = sum(
            count
            for (_, vector, bits), count in accesses.items()
            if not vector and bits in ("8", "16")
        )
        # A target's logit and its bias are elements by themselves.
        max_narrow = 3 * int(kernel.others[0]) if kernel.name == "cross_entropy" else 0
        assert narrow <= max_narrow, shown
        assert not any(vector == ".v2" for _, vector, _ in accesses), shown


def test_rows_up_to_1024_wide_stay_in_registers(architecture):
    widest = Counter()
    for kernel, found in compiled(architecture).items():
        if kernel.in_registers:
            key = kernel.name, kernel.dtype
            widest[key] = max(widest[key], kernel.ahead)
            assert ".local" not in found.ptx, kernel
            warps_meet = kernel.name == "norm_backward_with_sums" or kernel.others[1:] == ("true",)
            assert warps_meet or ".shared" not in found.ptx, kernel
    for (name, dtype), ahead in widest.items():
        assert ahead // device_code.TRAFFIC[name].ahead * device_code.PACKS[dtype] == 1024 // 32
    assert {name for name, _ in widest} == {*device_code.ROW_KERNELS, "norm_backward_with_sums"}
