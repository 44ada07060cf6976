"""The CUDA sources without a GPU: their arithmetic on the CPU, and real code for each architecture."""

import subprocess
import sys

import pytest
import torch
from op_cases import cases, run
from shim import CSRC, KERNELS

# More than the packs of one warp, with packs; without; less than a warp has lanes.
WIDTHS = (272, 33, 7)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 2e-3}


@pytest.mark.usefixtures("shim_library")
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype, order, monkeypatch):
    monkeypatch.setenv("DSMM_SHIM_ORDER", order)
    torch.manual_seed(0)
    for width in WIDTHS if order == "forward" else WIDTHS[1:2]:
        for inputs in cases(name, dtype, width):
            got = run("dsmm_shim", name, inputs)
            expected = run("dsmm_reference", name, inputs, torch.double)
            for output, exact in zip(got, expected, strict=True):
                assert output.shape == exact.shape
                if output.numel():
                    assert (output - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


@pytest.mark.parametrize("architecture", ["sm_70", "sm_80", "sm_90"])
def test_device_code_compiles(architecture):
    script = CSRC / "cuda/compile_device_code.py"
    ended = subprocess.run([sys.executable, str(script), architecture], capture_output=True, text=True)
    if ended.returncode == 3:
        pytest.skip(ended.stderr.strip())
    assert ended.returncode == 0, ended.stderr
