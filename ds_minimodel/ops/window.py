"""Attention of queries to a range of keys around them, with heads that may share keys.

Shape legend: B batch, N heads of queries, K heads of keys, Q queries, S keys, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.attention import attention, masked_attention
from ds_minimodel.ops.dropout import dropout_reference
from ds_minimodel.ops.library import accumulation_dtype, define, differentiate
from ds_minimodel.ops.loading import device_type

Window = tuple[
    int | None, int | None
]  # how many keys before and after its own a query sees; None: all

EVERYTHING: Window = (None, None)


def _parts(keys_values: Tensor, queries: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B,K,N/K,Q,D), keys and values (B,K,1,S,D), in the dtype of sums."""
    width = queries.shape[-1] // num_heads
    wide = accumulation_dtype(queries.dtype)
    k, v = (
        part.unflatten(-1, (-1, 1, width)).movedim(1, 3).to(wide)
        for part in keys_values.chunk(2, -1)
    )
    return queries.unflatten(-1, (k.shape[1], -1, width)).movedim(1, 3).to(wide), k, v


def _joined(*parts: Tensor) -> Tensor:
    """The inverse: parts (B,K,G,S,D) side by side -> (B,S,…)."""
    return torch.cat([part.movedim(3, 1).flatten(2) for part in parts], -1)


def keys_in_window(
    num_keys: int, positions: Tensor, before: int, after: int, lengths: Tensor | None
) -> Tensor:
    """Which keys the queries see, (1,Q,S) or (B,Q,S)."""
    places_S = torch.arange(num_keys, device=positions.device)
    ahead = places_S - torch.atleast_2d(positions)[..., None]
    seen = (ahead >= -before) & (ahead <= after)
    return seen if lengths is None else seen & (places_S < lengths[:, None, None])


def _probs(q, k, positions, before, after, lengths, scale):
    """Probabilities (B,K,N/K,Q,S) before dropout; a query that sees no key has zeros."""
    seen = keys_in_window(k.shape[-2], positions, before, after, lengths)
    scores = (q @ k.mT * scale).masked_fill(~seen[:, None, None], -torch.inf)
    return scores.softmax(-1).masked_fill(scores == -torch.inf, 0)


def _forward_reference(
    keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale
):
    q, k, v = _parts(keys_values, queries, num_heads)
    probs = _probs(q, k, positions, before, after, lengths, scale)
    dropped = dropout_reference(probs.flatten(1, 2), p, row_keys).view(probs.shape)
    return _joined(dropped @ v).to(queries.dtype)


def _backward_reference(
    grad, keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale
):
    q, k, v = _parts(keys_values, queries, num_heads)
    probs = _probs(q, k, positions, before, after, lengths, scale)

    def drop(x: Tensor) -> Tensor:
        return dropout_reference(x.flatten(1, 2), p, row_keys).view(x.shape)

    grad_context = grad.unflatten(-1, (*q.shape[1:3], -1)).movedim(1, 3).to(q.dtype)
    grad_probs = drop(grad_context @ v.mT)
    grad_scores = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True)) * scale
    grad_k, grad_v = (
        (part.mT @ by).sum(2, keepdim=True)
        for part, by in ((grad_scores, q), (drop(probs), grad_context))
    )
    return _joined(grad_k, grad_v).to(keys_values.dtype), _joined(grad_scores @ k).to(queries.dtype)


_ARGUMENTS = (
    "Tensor keys_values, Tensor queries, int num_heads, Tensor positions, int before, int after, "
    "Tensor? lengths, "
    "float p, Tensor? row_keys, float scale"
)
_forward = define(
    f"window_attention({_ARGUMENTS}) -> Tensor",
    _forward_reference,
    lambda keys_values, queries, *_: queries.new_empty(
        queries.shape
    ),  # the reference takes seconds to trace
)
_backward_op = define(
    f"window_attention_backward(Tensor grad, {_ARGUMENTS}) -> (Tensor grad_keys_values, Tensor "
    "grad_queries)",
    _backward_reference,
    lambda grad, *inputs: tuple(one.new_empty(one.shape) for one in inputs[:2]),
)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    (
        keys_values,
        queries,
        ctx.num_heads,
        positions,
        ctx.before,
        ctx.after,
        lengths,
        ctx.p,
        row_keys,
        ctx.scale,
    ) = inputs
    ctx.save_for_backward(keys_values, queries, positions, lengths, row_keys)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    keys_values, queries, positions, lengths, row_keys = ctx.saved_tensors
    of_window = positions, ctx.before, ctx.after, lengths, ctx.p, row_keys, ctx.scale
    return *_backward_op(grad, keys_values, queries, ctx.num_heads, *of_window), *(None,) * 8


fused_window_attention = differentiate(_forward, _setup_context, _backward)


def torch_window_attention(
    keys_values: Tensor, queries: Tensor, num_heads: int, seen: Tensor | None, scale: float
) -> Tensor:
    """By torch's kernels, without dropout.

    seen: which keys, (1,Q,S) or (B,Q,S); None: those up to its own of each of S queries, for which
    no kernel reads a mask, and flash and cuDNN let heads share keys. Where a mask or another kernel
    serves, each head gets keys of its own: torch's others would keep all scores.
    """
    width = queries.shape[-1] // num_heads
    q, k, v = (
        part.unflatten(-1, (-1, width)).transpose(1, 2)
        for part in (queries, *keys_values.chunk(2, -1))
    )
    if k.shape[1] < num_heads and not (seen is None and _lets_heads_share(q, k, v)):
        k, v = (part.repeat_interleave(num_heads // part.shape[1], 1) for part in (k, v))
    if seen is None:
        shares = k.shape[1] < num_heads
        context = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=shares
        )
        return context.transpose(1, 2).flatten(2)
    seen = seen[:, None]
    blind = ~seen.any(
        -1, keepdim=True
    )  # torch may give nan where a query sees nothing: it gets all keys, then zeros
    context = masked_attention(q, k, v, seen | blind, scale)
    return context.masked_fill(blind, 0).transpose(1, 2).flatten(2)


def _lets_heads_share(q: Tensor, k: Tensor, v: Tensor) -> bool:
    params = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, True, True)
    return not q.is_cuda or torch.backends.cuda.can_use_flash_attention(params)


def window_attention(
    keys_values: Tensor,
    queries: Tensor,
    num_heads: int,
    positions: Tensor,
    window: Window = EVERYTHING,
    lengths: Tensor | None = None,
    p: float = 0.0,
    row_keys: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention (B,Q,N*D) of queries (B,Q,N*D) to the keys in a window around
    them.

    keys_values: (B,S,2*K*D), keys before values; N/K heads of queries in a row share one of keys.
    positions: of the queries, (B,Q) int64, or of all rows (Q,); as many as keys are 0 … S - 1.
    window: (before, after). lengths: (B,) int32, keys that each row has, None for all; a query that
    sees none attends to nothing. p, row_keys: dropout of the probabilities, as of `attention`.
    scale: of the scores, 1/sqrt(D) by default.
    """
    if p == 0:
        row_keys = None
    width = queries.shape[-1] // num_heads
    num_keys = keys_values.shape[1]
    before, after = (num_keys if reach is None else reach for reach in window)
    scale = width**-0.5 if scale is None else scale
    own_keys = keys_values.shape[-1] == 2 * num_heads * width
    if min(before, after) >= num_keys - 1 and own_keys and scale == width**-0.5:
        return attention(keys_values, num_heads, lengths, p, row_keys, queries)
    if device_type(queries.device) == "cuda" and row_keys is None:
        all_queries = positions.shape == (num_keys,)
        causal = all_queries and after == 0 and before >= num_keys - 1 and lengths is None
        if not queries.is_meta:
            seen = None if causal else keys_in_window(num_keys, positions, before, after, lengths)
            return torch_window_attention(keys_values, queries, num_heads, seen, scale)
        if not own_keys and not (
            causal and queries.dtype == torch.bfloat16
        ):  # flash may be missing: keys of their own
            heads = keys_values.unflatten(-1, (-1, width))
            keys_values = heads.repeat_interleave(2 * num_heads // heads.shape[2], 2).flatten(2)
    return fused_window_attention(
        keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale
    )
