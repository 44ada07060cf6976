"""The operators as they are used, on this machine's device (a GPU where there is one), against double precision.

Forward and backward through autograd, at sizes of a training step and at odd ones. scripts/gpu_check.sh runs this.
"""

import pytest
import torch
import torch.nn.functional as F
from op_cases import KERNELS, assert_near_reference, cases, packed, row_keys_of

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of the largest element: a few roundings of the result's dtype.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 4e-3}
DTYPES = [dtype for dtype in TOLERANCE if DEVICE == "cuda" or dtype != torch.float16]
SIZES = [(96, 768), (37, 3072), (65, 771), (5, 33), (3, 7)]  # rows, width


def close(got, exact, dtype):
    assert got.shape == exact.shape and got.isfinite().all()
    assert (got.double() - exact).abs().max() <= TOLERANCE[dtype] * max(exact.abs().max(), 1e-3)


def compare(ours, reference, tensors, dtype):
    """Result and gradients of `ours` in `dtype` on the device against `reference` in double precision."""
    low = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in tensors]
    exact = [tensor.detach().double().requires_grad_() for tensor in low]
    got, expected = ours(*low), reference(*exact)
    close(got, expected, dtype)
    grad = torch.randn(got.shape, device=DEVICE, dtype=got.dtype)
    for one, other in zip(torch.autograd.grad(got, low, grad), torch.autograd.grad(expected, exact, grad.double())):
        close(one, other, dtype)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_every_operator(name, dtype):
    for width in (768, 272, 100, 33, 7):
        for inputs in cases(name, dtype, width):
            inputs = [value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in inputs]
            assert_near_reference("dsmm", name, inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, width", SIZES)
def test_joint_and_gelu(rows, width, dtype):
    x, residual = torch.randn(2, rows, width)
    weight, bias = torch.randn(2, width)
    for p, row_keys in ((0.0, None), (0.1, row_keys_of(rows).to(DEVICE))):
        compare(
            lambda *leaves: ops.residual_norm(*leaves, 1e-5, p, row_keys)[0],
            lambda x, residual, weight, bias: F.layer_norm(
                ops.dropout(x, p, row_keys) + residual, (width,), weight, bias, 1e-5
            ),
            (x, residual, weight, bias),
            dtype,
        )
    compare(ops.bias_gelu, lambda x, bias: F.gelu(x + bias), (x, bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length, width", [(64, 64), (37, 64), (77, 20)])
def test_attention(length, width, dtype):
    lengths = torch.tensor([length, length // 2], dtype=torch.int32, device=DEVICE)
    allowed = (torch.arange(length, device=DEVICE) < lengths[:, None])[:, None, None, :]
    for of_sample, mask in ((None, None), (lengths, allowed)):
        for num_queries in (None, 5):
            compare(
                lambda q, k, v: (
                    ops.attention(packed(k, v), 3, of_sample, queries=packed(q[:, :, :num_queries]))
                    if num_queries
                    else ops.attention(packed(q, k, v), 3, of_sample)
                ),
                lambda q, k, v: packed(F.scaled_dot_product_attention(q[:, :, :num_queries], k, v, mask)),
                tuple(torch.randn(3, 2, 3, length, width)),
                dtype,
            )
    row_keys = row_keys_of(2, 3, length).to(DEVICE)

    def dropped(q, k, v):
        scores = (q @ k.transpose(-1, -2) * width**-0.5).masked_fill(~allowed, -torch.inf)
        return packed(ops.dropout(torch.softmax(scores, -1), 0.1, row_keys) @ v)

    compare(
        lambda *parts: ops.attention(packed(*parts), 3, lengths, 0.1, row_keys),
        dropped,
        tuple(torch.randn(3, 2, 3, length, width)),
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, width, vocabulary", [(100, 64, 1000), (2500, 32, 501), (5, 33, 77)])
def test_linear_cross_entropy(rows, width, vocabulary, dtype):
    targets = torch.randint(vocabulary, (rows,), device=DEVICE)
    targets[::7] = IGNORED
    compare(
        lambda *leaves: ops.linear_cross_entropy(*leaves, targets) / rows,
        lambda x, weight, bias: F.cross_entropy(x @ weight.T + bias, targets, reduction="sum") / rows,
        (torch.randn(rows, width), torch.randn(vocabulary, width) / width**0.5, torch.randn(vocabulary)),
        dtype,
    )
