"""The arithmetic of the CUDA sources, run on the CPU; what they cost on a GPU is in test_device_code.py."""

import pytest
import torch
from op_cases import assert_near_reference, cases
from shim import KERNELS

from ds_minimodel.common.vocabulary import IGNORED

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
            assert_near_reference("dsmm_shim", name, inputs, TOLERANCE[dtype])


@pytest.mark.usefixtures("shim_library")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("width", [64, 768, 1024, 1032])  # of which registers hold the first three
@pytest.mark.parametrize(
    "name", ["residual_norm", "residual_norm_backward", "masked_softmax", "masked_softmax_backward"]
)
def test_rows_in_registers_and_beyond(name, width, dtype):
    torch.manual_seed(0)
    assert_near_reference("dsmm_shim", name, next(cases(name, dtype, width)), TOLERANCE[dtype])


@pytest.mark.usefixtures("shim_library")
@pytest.mark.parametrize("width", [24, 7])
def test_cross_entropy_of_rows_that_share_a_block(width):
    torch.manual_seed(0)
    targets = torch.randint(width, (513,))
    targets[[1, 40, 512]] = IGNORED
    inputs = 4 * torch.randn(513, width), torch.randn(width), targets, True
    assert_near_reference("dsmm_shim", "cross_entropy_", inputs, TOLERANCE[torch.float32])
