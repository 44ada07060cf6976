"""Gated activations: activation(first half) * second half.

Shazeer 2020, "GLU Variants Improve Transformer". Shapes: x (..., 2F), the result (..., F).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.library import define, differentiate

# {name: (function, its gradient)} in the order of csrc/arguments.h: the operators take the index.
ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    "gelu": (F.gelu, torch.ops.aten.gelu_backward),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),
    ),
    "silu": (F.silu, torch.ops.aten.silu_backward),
}


def _forward_reference(x: Tensor, activation: int) -> Tensor:
    forward, _ = list(ACTIVATIONS.values())[activation]
    inner, gate = x.chunk(2, -1)
    return forward(inner) * gate


def _backward_reference(grad: Tensor, x: Tensor, activation: int) -> Tensor:
    forward, backward = list(ACTIVATIONS.values())[activation]
    inner, gate = x.chunk(2, -1)
    return torch.cat((backward(grad * gate, inner), grad * forward(inner)), -1)


_forward = define("gated(Tensor x, int activation) -> Tensor", _forward_reference)
_backward_op = define(
    "gated_backward(Tensor grad, Tensor x, int activation) -> Tensor", _backward_reference
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    x, ctx.activation = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _backward_op(grad, *ctx.saved_tensors, ctx.activation), None


_differentiable = differentiate(_forward, _setup_context, _backward)


def gated(x: Tensor, activation: str) -> Tensor:
    """Return activation(first half) * second half of the last axis, (..., F).

    Args:
        x: (..., 2F).
        activation: gelu (exact), gelu_tanh (its approximation) or silu.
    """
    return _differentiable(x, list(ACTIVATIONS).index(activation))
