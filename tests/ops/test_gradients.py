"""Gradients of the torch references, against finite differences in double precision.

Those of linear_cross_entropy are in test_cross_entropy.py.
"""

import pytest
import torch
from op_cases import NAMES, P, cases, row_keys_of
from torch.autograd import gradcheck

from ds_minimodel import ops

B = 2
N = 3
S = 5
H = 7


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if not name.endswith(("_backward", "_", "cross_entropy"))]
)
def test_every_operator(name):
    for inputs in cases(name, torch.double, 3):
        for value in filter(torch.is_tensor, inputs):
            value.requires_grad_(value.is_floating_point())
        if name == "rotary":
            inputs[1].requires_grad_(requires_grad=False)  # the table of angles
        assert gradcheck(getattr(torch.ops.dsmm, name), inputs, fast_mode=True)


def test_the_sum_alone_has_a_gradient():
    x = leaf(B, S, H)
    residual = leaf(B, S, H)
    row_keys = row_keys_of(B, S)
    _, total = ops.residual_norm(x, residual, leaf(H), None, eps=1e-5, p=P, row_keys=row_keys)
    (grad,) = torch.autograd.grad(total.sum(), x)
    is_kept = (grad - 1 / (1 - P)).abs() < 1e-9
    assert ((grad == 0) | is_kept).all()


def test_attention_of_which_nothing_reads_a_part():
    """The probability of the only key is 1, so that keys and queries have no gradient at all."""
    projected = leaf(B, 1, 2 * N * 4)
    queries = leaf(B, 1, N * 4)
    ops.attention(projected, N, None, queries=queries.detach()).sum().backward()
    grad_keys, grad_values = projected.grad.chunk(2, -1)
    assert not grad_keys.any()
    assert (grad_values == 1).all()
