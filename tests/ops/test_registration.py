"""Every operator as torch sees it: schema, fake, autograd, tracing."""

import math

import pytest
import torch
from op_cases import NAMES, cases, row_keys_of
from torch.library import opcheck

from ds_minimodel import ops

UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")
MOST = 2  # cases of an operator with which torch traces anew


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    """A trace of an operator that has a gradient has that of its backward operator, too."""
    op = getattr(torch.ops.dsmm, name).default
    differentiable = not name.endswith(("_backward", "_"))
    of_op = list(cases(name, torch.float32, 20))
    of_op = of_op[
        :: 3 if len(of_op) > 10 else 1
    ]  # options come by twos: every one of them is there
    every = math.ceil(len(of_op) / MOST)
    for number, inputs in enumerate(of_op):
        inputs = [
            value.clone().requires_grad_(differentiable and value.is_floating_point())
            if isinstance(value, torch.Tensor)
            else value
            for value in inputs
        ]
        is_traced = number % every == 0 and not name.endswith("_backward")
        opcheck(
            op,
            inputs,
            test_utils=(*UNTRACED, "test_aot_dispatch_dynamic") if is_traced else UNTRACED,
        )


def _layer(x, weight, bias, vocabulary, targets, row_keys):
    hidden, total = ops.residual_norm(ops.bias_gelu(x, bias), x, weight, bias, 1e-5, 0.1, row_keys)
    hidden = hidden + ops.residual_norm(total, None, weight, None, 1e-5, rms=True)[0]
    projected = ops.linear(hidden, torch.cat([vocabulary, vocabulary[:8]]))
    mixed = ops.attention(projected, 2, torch.tensor([6, 3], dtype=torch.int32))
    mixed = ops.dropout(mixed, 0.1, row_keys)
    return ops.linear_cross_entropy(mixed.flatten(0, 1), vocabulary, vocabulary[:, 0], targets)


def test_traced_step_equals_the_eager_one():
    tensors = [torch.randn(2, 6, 16), torch.randn(16), torch.randn(16), torch.randn(40, 16)]
    targets = torch.randint(0, 40, (12,))
    row_keys = row_keys_of(2, 6)
    results = []
    for function in (_layer, torch.compile(_layer, fullgraph=True, backend="aot_eager")):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        loss = function(*leaves, targets, row_keys)
        loss.backward()
        results.append([loss, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*results)
