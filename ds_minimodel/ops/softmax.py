"""Softmax over the keys of attention, scaled, masked by length, with dropout.

Shape legend: B batch, N heads, Q queries, K keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ds_minimodel.ops.dropout import dropout_reference
from ds_minimodel.ops.library import accumulation_dtype, define, differentiate


def _forward_reference(scores, lengths, scale, p, row_keys):
    scaled = scores.to(accumulation_dtype(scores.dtype)) * scale
    if lengths is not None:
        num_keys = scores.shape[-1]
        masked_BK = torch.arange(num_keys, device=scores.device) >= lengths[:, None]
        scaled = scaled.masked_fill(masked_BK[:, None, None, :], -torch.inf)
    probs = torch.softmax(scaled, -1)
    if (
        lengths is not None
    ):  # a sample without keys is a row of -inf alone, whose softmax is nan; it attends to nothing
        probs = probs.masked_fill((lengths <= 0)[:, None, None, None], 0)
    probs = probs.to(scores.dtype)
    if row_keys is None:
        return probs, probs.new_empty(0)
    return dropout_reference(probs, p, row_keys), probs


def _backward_reference(grad, probs, lengths, scale, p, row_keys):
    dtype = accumulation_dtype(probs.dtype)
    grad = dropout_reference(grad.to(dtype), p, row_keys)
    return (torch._softmax_backward_data(grad, probs.to(dtype), -1, dtype) * scale).to(probs.dtype)


# probs is empty where it equals out (no dropout); an output may not alias another.
_forward = define(
    "masked_softmax(Tensor scores, Tensor? lengths, float scale, float p, Tensor? row_keys) "
    "-> (Tensor out, Tensor probs)",
    _forward_reference,
)
_backward_op = define(
    "masked_softmax_backward(Tensor grad, Tensor probs, Tensor? lengths, float scale, "
    "float p, Tensor? row_keys) -> Tensor",
    _backward_reference,
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    _, lengths, ctx.scale, ctx.p, row_keys = inputs
    out, probs = output
    ctx.save_for_backward(out if row_keys is None else probs, lengths, row_keys)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    probs, lengths, row_keys = ctx.saved_tensors
    return _backward_op(grad, probs, lengths, ctx.scale, ctx.p, row_keys), None, None, None, None


_differentiable = differentiate(_forward, _setup_context, _backward)


def masked_softmax(
    scores: Tensor,
    lengths: Tensor | None,
    scale: float,
    p: float = 0.0,
    row_keys: Tensor | None = None,
) -> Tensor:
    """dropout(softmax(scale * scores)) over the last axis, in float32 inside.

    scores: (B,N,Q,K). lengths: (B,) int32 or None: keys at or after a sample's length get
    probability 0; a sample of length 0 gets 0 everywhere. row_keys: (B,N,Q) int32.
    """
    if p == 0:
        row_keys = None
    return _differentiable(scores, lengths, scale, p, row_keys)
