"""The norm of residual + dropout(x), where sublayers of a transformer meet, and that sum.

Shapes: x, residual (..., H); weight, bias (H,); row_keys (...) int32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.dropout import dropout_reference
from ds_minimodel.ops.library import accumulation_dtype, define, differentiate

# Elements below which torch's own add and LayerNorm take less time on the CPU: the calls into this
# operator cost some 40 us more for each forward and backward pass.
TORCH_IS_FASTER_BELOW = {torch.float32: 2**19, torch.bfloat16: 2**17}


def _parameters(total, *parameters):
    """Return parameters in the dtype that torch's LayerNorm takes beside `total`.

    On the CPU float32 parameters keep its statistics in float32; CUDA does so always, and wants
    one dtype.
    """
    dtype = accumulation_dtype(total.dtype) if total.device.type == "cpu" else total.dtype
    return [None if parameter is None else parameter.to(dtype) for parameter in parameters]


def _forward_reference(x, residual, weight, bias, eps, p, row_keys, rms):
    total = dropout_reference(x, p, row_keys)
    if residual is not None:
        total = residual + total
    if rms:
        wide = total.to(accumulation_dtype(total.dtype))
        rstd = (wide.square().mean(-1) + eps).rsqrt()
        mean = torch.zeros_like(rstd)
        out = wide * rstd[..., None] * weight
        if bias is not None:
            out = out + bias
        out = out.to(x.dtype)
    else:
        weight, bias = _parameters(total, weight, bias)
        out, mean, rstd = torch.native_layer_norm(total, total.shape[-1:], weight, bias, eps)
    saved = total if _saves_total(residual, row_keys) else x.new_empty(0)
    return out, saved.contiguous(), torch.stack((mean.flatten(), rstd.flatten()))


def _saves_total(residual: Tensor | None, row_keys: Tensor | None) -> bool:
    """Return whether the normalised sum differs from x, and so has to be saved beside it."""
    return residual is not None or row_keys is not None


def _forward_fake(x, residual, weight, bias, eps, p, row_keys, rms):
    statistics = x.new_empty((2, x.shape[:-1].numel()), dtype=accumulation_dtype(x.dtype))
    total = x.new_empty(x.shape if _saves_total(residual, row_keys) else 0)
    return x.new_empty(x.shape), total, statistics


def _backward_reference(
    grad, grad_sum, total, statistics, weight, p, row_keys, has_residual, trains, rms
):
    mean, rstd = statistics.view(2, *total.shape[:-1], 1)
    if rms:
        wide = accumulation_dtype(total.dtype)
        normalised = total.to(wide) * rstd
        weighted = grad.to(wide) * weight
        projection = normalised * (weighted * normalised).mean(-1, keepdim=True)
        grad_total = ((weighted - projection) * rstd).to(total.dtype)
        rows = grad.to(wide).flatten(0, -2)
        grad_weight = (rows * normalised.flatten(0, -2)).sum(0)
        grad_bias = rows.sum(0)
    else:
        (weight_like,) = _parameters(total, weight)
        grad_total, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(),
            total,
            total.shape[-1:],
            mean,
            rstd,
            weight_like,
            weight_like,
            [True, trains, trains],
        )
    if grad_sum is not None:
        grad_total = grad_total + grad_sum
    grad_x = dropout_reference(grad_total, p, row_keys)
    # Without dropout the gradient of x is that of the residual, which is returned once.
    needs_grad_x = grad_x is not grad_total or not has_residual
    empty = grad.new_empty(0)
    return (
        grad_x if needs_grad_x else empty,
        grad_total if has_residual else empty,
        grad_weight.to(weight.dtype) if trains else weight.new_empty(0),
        grad_bias.to(weight.dtype) if trains else weight.new_empty(0),
    )


def _backward_fake(
    grad, grad_sum, total, statistics, weight, p, row_keys, has_residual, trains, rms
):
    needs_grad_x = row_keys is not None or not has_residual
    return (
        grad.new_empty(total.shape if needs_grad_x else 0),
        grad.new_empty(total.shape if has_residual else 0),
        weight.new_empty(weight.shape if trains else 0),
        weight.new_empty(weight.shape if trains else 0),
    )


# total is empty where it equals x; an output may not alias an input.
_forward = define(
    "residual_norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, float eps, float p, "
    "Tensor? row_keys, bool rms) -> (Tensor out, Tensor total, Tensor statistics)",
    _forward_reference,
    _forward_fake,
)

# grad_sum: of the sum itself. grad_x is empty where it equals grad_residual (no dropout); an output
# may not alias another.
_backward_op = define(
    "residual_norm_backward(Tensor grad, Tensor? grad_sum, Tensor total, Tensor statistics, "
    "Tensor weight, float p, Tensor? row_keys, bool has_residual, bool trains, bool rms) "
    "-> (Tensor grad_x, Tensor grad_residual, Tensor grad_weight, Tensor grad_bias)",
    _backward_reference,
    _backward_fake,
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    x, residual, weight, bias, _, ctx.p, row_keys, ctx.rms = inputs
    _, total, statistics = output
    ctx.has_residual = residual is not None
    ctx.has_bias = bias is not None
    ctx.has_total = _saves_total(residual, row_keys)
    ctx.save_for_backward(total if ctx.has_total else x, statistics, weight, row_keys)


def _backward(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None) -> tuple[Tensor | None, ...]:
    total, statistics, weight, row_keys = ctx.saved_tensors
    trains = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
    grad = torch.zeros_like(total) if grad is None else grad
    grad_sum = grad_sum if ctx.has_total else None
    grad_x, grad_residual, grad_weight, grad_bias = _backward_op(
        grad,
        grad_sum,
        total,
        statistics,
        weight,
        ctx.p,
        row_keys,
        ctx.has_residual,
        trains,
        ctx.rms,
    )
    if not ctx.has_residual:
        grad_residual = None
    elif row_keys is None:
        grad_x = grad_residual
    if not trains:
        grad_weight = None
    if not (trains and ctx.has_bias):
        grad_bias = None
    return grad_x, grad_residual, grad_weight, grad_bias, None, None, None, None


_differentiable = differentiate(_forward, _setup_context, _backward, outputs=2)


def residual_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    p: float = 0.0,
    row_keys: Tensor | None = None,
    rms: bool = False,
) -> tuple[Tensor, Tensor]:
    """Normalise residual + dropout(x) over the last axis.

    Statistics and sums are kept in float32 (float64 for float64). With frozen weight and bias the
    backward pass skips their reductions.

    Args:
        x: (..., H).
        residual: (..., H), or None.
        weight: (H,).
        bias: (H,), or None.
        eps: what is added to the variance, or to the mean square.
        p: the rate of dropout.
        row_keys: (...) int32, the row keys of that dropout; None: no dropout.
        rms: divide by the root of the mean square (Zhang and Sennrich 2019) and subtract nothing;
            otherwise LayerNorm.

    Returns:
        The norm and the sum itself, both (..., H) and with gradients.
    """
    if p == 0:
        row_keys = None
    is_small = x.device.type == "cpu" and x.numel() < TORCH_IS_FASTER_BELOW.get(x.dtype, 0)
    trains = weight.requires_grad or (bias is not None and bias.requires_grad)
    # In bf16 torch adds up the gradients of weight and bias in bf16, which loses a hundredth of
    # them.
    is_exact = x.dtype == weight.dtype and (x.dtype == torch.float32 or not trains)
    if is_small and is_exact and row_keys is None and not rms:
        total = x if residual is None else residual + x
        return F.layer_norm(total, x.shape[-1:], weight, bias, eps), total
    out, total = _differentiable(x, residual, weight, bias, eps, p, row_keys, rms)
    return out, total if _saves_total(residual, row_keys) else x
