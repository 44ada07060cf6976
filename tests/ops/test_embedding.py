"""Embeddings against sums in double precision."""

import pytest
import torch
from torch.autograd import gradcheck

from ds_minimodel import ops

V = 60
H = 16
EVERY_DTYPE = pytest.mark.parametrize(
    "dtype, tolerance",
    [
        (torch.float32, 1e-6),
        (torch.bfloat16, 2**-8),
        (torch.float16, 2**-11),
    ],
)


def a_batch(dtype):
    """(tokens with many <mask>, table, gradient of the rows, the table's exact gradient by them)"""
    tokens = torch.randint(V, (8, 128))
    tokens[torch.rand(tokens.shape) < 0.3] = V - 1  # <mask>
    weight = torch.randn(V, H).to(dtype).requires_grad_()
    grad = (torch.randn(8, 128, H) + 0.5).to(dtype)
    exact = torch.zeros(V, H, dtype=torch.double).index_add_(
        0, tokens.flatten(), grad.flatten(0, 1).double()
    )
    return tokens, weight, grad, exact


@EVERY_DTYPE
def test_a_gradient_of_many_uses_is_rounded_once(dtype, tolerance):
    tokens, weight, grad, exact = a_batch(dtype)
    out, _ = ops.embedding(tokens, weight)
    assert out.dtype == dtype
    assert out.equal(weight.detach()[tokens])
    out.backward(grad)
    assert weight.grad.dtype == dtype
    errors = (weight.grad - exact).norm(dim=1)
    assert (errors <= tolerance * exact.norm(dim=1)).all()


@EVERY_DTYPE
@pytest.mark.parametrize("heads", [1, 2])
def test_a_tied_projection_adds_its_gradient(dtype, tolerance, heads):
    tokens, weight, grad, exact = a_batch(dtype)
    out, table = ops.embedding(tokens, weight)
    x = torch.randn(heads, 40, H).to(dtype)
    loss = sum((x_head @ table.T).sum() for x_head in x)
    torch.autograd.backward([out, loss], [grad, torch.ones_like(loss)])
    exact += x.double().sum((0, 1))
    errors = (weight.grad - exact).norm(dim=1)
    assert (errors <= 4 * heads * tolerance * exact.norm(dim=1)).all()


def test_either_use_alone():
    weight = torch.randn(V, H, dtype=torch.double, requires_grad=True)
    tokens = torch.tensor([[3, 9, 3]])

    def both(weight):
        return torch.cat([part.flatten() * 2 for part in ops.embedding(tokens, weight)])

    assert gradcheck(lambda weight: ops.embedding(tokens, weight)[0], weight)
    assert gradcheck(lambda weight: ops.embedding(tokens, weight)[1] * 2, weight)
    assert gradcheck(both, weight)


def test_a_frozen_table_has_no_graph():
    weight = torch.randn(V, H).bfloat16()
    out, table = ops.embedding(torch.tensor([[3, 1]]), weight)
    assert not out.requires_grad
    assert not table.requires_grad
