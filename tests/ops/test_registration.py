"""Every operator as torch sees it: schema, fake, autograd, tracing."""

import math

import pytest
import torch
from op_cases import NAMES, cases, row_keys_of
from torch.library import opcheck

from ds_minimodel import ops

UNTRACED = ("test_schema", "test_autograd_registration", "test_faketensor")
MAX_TRACED = 2  # cases of an operator with which torch traces anew


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    """A trace of an operator that has a gradient has that of its backward operator, too."""
    op = getattr(torch.ops.dsmm, name).default
    differentiable = not name.endswith(("_backward", "_"))
    of_op = list(cases(name, torch.float32, 20))
    # Options come by twos, so that of each third case every one is there.
    if len(of_op) > 10:
        of_op = of_op[::3]
    every = math.ceil(len(of_op) / MAX_TRACED)
    for index, inputs in enumerate(of_op):
        inputs = [value.clone() if torch.is_tensor(value) else value for value in inputs]
        for value in filter(torch.is_tensor, inputs):
            value.requires_grad_(differentiable and value.is_floating_point())
        is_traced = index % every == 0 and not name.endswith("_backward")
        checks = (*UNTRACED, "test_aot_dispatch_dynamic") if is_traced else UNTRACED
        opcheck(op, inputs, test_utils=checks)


def _layer(x, weight, bias, vocabulary, targets, row_keys):
    inner = ops.bias_gelu(x, bias)
    hidden, total = ops.residual_norm(inner, x, weight, bias, eps=1e-5, p=0.1, row_keys=row_keys)
    hidden = hidden + ops.residual_norm(total, None, weight, None, 1e-5, rms=True)[0]
    projected = ops.linear(hidden, torch.cat([vocabulary, vocabulary[:8]]))
    lengths = torch.tensor([6, 3], dtype=torch.int32)
    mixed = ops.attention(projected, 2, lengths)
    mixed = ops.dropout(mixed, 0.1, row_keys)
    return ops.linear_cross_entropy(mixed.flatten(0, 1), vocabulary, vocabulary[:, 0], targets)


def test_traced_step_equals_the_eager_one():
    shapes = ((2, 6, 16), (16,), (16,), (40, 16))
    tensors = [torch.randn(shape) for shape in shapes]
    targets = torch.randint(0, 40, (12,))
    row_keys = row_keys_of(2, 6)
    results = []
    for function in (_layer, torch.compile(_layer, fullgraph=True, backend="aot_eager")):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        loss = function(*leaves, targets, row_keys)
        loss.backward()
        results.append([loss, *(leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*results)
