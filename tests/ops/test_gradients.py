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
        inputs = [
            x.requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x
            for x in inputs
        ]
        if name == "rotary":
            inputs[1].requires_grad_(False)  # the table of angles
        assert gradcheck(getattr(torch.ops.dsmm, name), inputs, fast_mode=True)


def test_the_sum_alone_has_a_gradient():
    x = leaf(B, S, H)
    weight = leaf(H)
    _, total = ops.residual_norm(x, leaf(B, S, H), weight, None, 1e-5, P, row_keys_of(B, S))
    (grad,) = torch.autograd.grad(total.sum(), x)
    assert ((grad == 0) | ((grad - 1 / (1 - P)).abs() < 1e-9)).all()


def test_attention_of_which_nothing_reads_a_part():
    """Where the gradient of a part is none at all."""
    # One key: its probability is 1
    projected = leaf(B, 1, 2 * N * 4)
    queries = leaf(B, 1, N * 4)
    ops.attention(projected, N, None, queries=queries.detach()).sum().backward()
    assert not projected.grad[..., : N * 4].any() and (projected.grad[..., N * 4 :] == 1).all()
