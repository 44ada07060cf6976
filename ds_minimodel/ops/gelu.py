"""gelu(x + bias), exact (erf), as in RoBERTa. Shapes: x (..., F), bias (F,)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.library import accumulation_dtype, define, differentiate


def _forward_reference(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias.to(x.dtype))


def _backward_reference(
    grad: Tensor, x: Tensor, bias: Tensor, trains: bool
) -> tuple[Tensor, Tensor]:
    grad_x = torch.ops.aten.gelu_backward(grad, x + bias.to(x.dtype))
    if not trains:
        return grad_x, bias.new_empty(0)
    sums = grad_x.flatten(0, -2).sum(0, dtype=accumulation_dtype(x.dtype))
    return grad_x, sums.to(bias.dtype)


_forward = define("bias_gelu(Tensor x, Tensor bias) -> Tensor", _forward_reference)
_backward_op = define(
    "bias_gelu_backward(Tensor grad, Tensor x, Tensor bias, bool trains) -> (Tensor grad_x, Tensor "
    "grad_bias)",
    _backward_reference,
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    trains = ctx.needs_input_grad[1]
    grad_x, grad_bias = _backward_op(grad, *ctx.saved_tensors, trains)
    return grad_x, grad_bias if trains else None


_differentiable = differentiate(_forward, _setup_context, _backward)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return gelu(x + bias), with the exact erf, (..., F).

    With a frozen bias the backward pass skips its reduction.

    Args:
        x: (..., F).
        bias: (F,).
    """
    return _differentiable(x, bias)
