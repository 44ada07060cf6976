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
    if lengths is not None:
        # A sample without keys attends to nothing; the softmax of its rows, all -inf, is nan.
        probs = probs.masked_fill((lengths <= 0)[:, None, None, None], 0)
    probs = probs.to(scores.dtype)
    if row_keys is None:
        return probs, probs.new_empty(0)
    return dropout_reference(probs, p, row_keys), probs


def _backward_reference(grad, probs, lengths, scale, p, row_keys):
    dtype = accumulation_dtype(probs.dtype)
    grad_probs = dropout_reference(grad.to(dtype), p, row_keys)
    grad_scaled = torch._softmax_backward_data(grad_probs, probs.to(dtype), -1, dtype)
    return (grad_scaled * scale).to(probs.dtype)


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
    grad_scores = _backward_op(grad, probs, lengths, ctx.scale, ctx.p, row_keys)
    return grad_scores, None, None, None, None


_differentiable = differentiate(_forward, _setup_context, _backward)


def masked_softmax(
    scores: Tensor,
    lengths: Tensor | None,
    scale: float,
    p: float = 0.0,
    row_keys: Tensor | None = None,
) -> Tensor:
    """Return dropout(softmax(scale * scores)) over the last axis (B,N,Q,K), computed in float32.

    Args:
        scores: (B,N,Q,K).
        lengths: (B,) int32; keys from a sample's length on get probability 0, all of them in a
            sample of length 0. None: every key is real.
        scale: of the scores.
        p: the rate of dropout.
        row_keys: (B,N,Q) int32, the row keys of that dropout; None: no dropout.
    """
    if p == 0:
        row_keys = None
    return _differentiable(scores, lengths, scale, p, row_keys)
