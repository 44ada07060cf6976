"""The arithmetic of the CUDA sources, run on the CPU.

What they cost on a GPU is in test_device_code.py.
"""

import itertools

import pytest
import torch
from op_cases import assert_near_reference, cases, run
from shim import KERNELS

from ds_minimodel.common.vocabulary import IGNORED

pytestmark = pytest.mark.usefixtures("shim_library")
# More than the packs of one warp, with packs; without; less than a warp has lanes.
WIDTHS = (272, 33, 7)
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 2e-3}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype, order, monkeypatch):
    monkeypatch.setenv("DSMM_SHIM_ORDER", order)
    for width in WIDTHS if order == "forward" else WIDTHS[1:2]:
        for inputs in cases(name, dtype, width):
            assert_near_reference("dsmm_shim", name, inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
# Registers of a warp hold the first three, those of a block's warps the next, shared memory of a
# softmax too.
@pytest.mark.parametrize("width", [64, 768, 1024, 1032, 2056])
@pytest.mark.parametrize(
    "name", ["residual_norm", "residual_norm_backward", "masked_softmax", "masked_softmax_backward"]
)
def test_rows_in_registers_and_beyond(name, width, dtype):
    assert_near_reference("dsmm_shim", name, next(cases(name, dtype, width)), TOLERANCE[dtype])


@pytest.mark.parametrize("width", [24, 7])
def test_cross_entropy_of_rows_that_share_a_block(width):
    targets = torch.randint(width, (33,))
    targets[[1, 30, 32]] = IGNORED
    inputs = 4 * torch.randn(33, width), torch.randn(width), targets, True
    assert_near_reference("dsmm_shim", "cross_entropy_", inputs, TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", ["residual_norm", "residual_norm_backward", "masked_softmax"])
def test_rows_that_no_kernel_holds(name):
    """More than 12,288 columns: torch's operators, or a kernel that needs not hold them."""
    inputs = next(cases(name, torch.float32, 12296))
    assert_near_reference("dsmm_shim", name, inputs, TOLERANCE[torch.float32])


def test_parameters_of_the_rows_own_dtype_are_read_as_they_are():
    for dtype, width in itertools.product((torch.bfloat16, torch.float16), (1032, 64, 33)):
        x = torch.randn(9, width, dtype=dtype)
        weight, bias = torch.randn(2, width, dtype=dtype)
        options = 1e-5, 0.0, None, False
        outputs = run("dsmm_shim", "residual_norm", (x, None, weight, bias, *options))
        wide = x, None, weight.float(), bias.float(), *options
        assert all(map(torch.equal, outputs, run("dsmm_shim", "residual_norm", wide)))


def test_a_position_outside_the_table_makes_its_row_nan():
    """On GPUs, which do not wait for the host to look at positions; and so do targets."""
    positions = torch.tensor([0, 5, -1])
    x = torch.randn(2, 3, 8)
    turned = torch.ops.dsmm_shim.rotary(x, torch.ones(4, 2, 4), 1, positions, False)
    assert turned.isnan().any(-1).tolist() == [[False, True, True]] * 2
    logits = torch.randn(2, 8)
    targets = torch.tensor([1, 8])
    assert torch.ops.dsmm_shim.cross_entropy_(logits, None, targets, False).isnan()
