"""Attention of queries to a range of keys around them, with heads that may share keys.

Shape legend: B batch, N heads of queries, K heads of keys, G = N/K heads of queries that share one
of keys, Q queries, S keys, D head width.
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

# How many keys before and after its position a query sees; None: all.
Window = tuple[int | None, int | None]

EVERYTHING: Window = (None, None)


def _parts(keys_values: Tensor, queries: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (B,K,N/K,Q,D), keys and values (B,K,1,S,D), in the dtype of sums."""
    width = queries.shape[-1] // num_heads
    dtype = accumulation_dtype(queries.dtype)
    keys, values = keys_values.chunk(2, -1)
    k = keys.unflatten(-1, (-1, 1, width)).movedim(1, 3).to(dtype)
    v = values.unflatten(-1, (-1, 1, width)).movedim(1, 3).to(dtype)
    q = queries.unflatten(-1, (k.shape[1], -1, width)).movedim(1, 3).to(dtype)
    return q, k, v


def _joined(*parts: Tensor) -> Tensor:
    """Undo `_parts`: put (B,K,G,S,D) side by side -> (B,S,…)."""
    return torch.cat([part.movedim(3, 1).flatten(2) for part in parts], -1)


def keys_in_window(
    num_keys: int, positions: Tensor, before: int, after: int, lengths: Tensor | None
) -> Tensor:
    """Return which keys the queries see: bool, (1,Q,S) or (B,Q,S).

    Args:
        num_keys: S.
        positions: of the queries, (Q,) or (B,Q).
        before: how many keys before its position a query sees.
        after: how many behind it.
        lengths: (B,), how many keys of each row are real; None: all.
    """
    keys_S = torch.arange(num_keys, device=positions.device)
    ahead = keys_S - torch.atleast_2d(positions)[..., None]
    seen = (ahead >= -before) & (ahead <= after)
    return seen if lengths is None else seen & (keys_S < lengths[:, None, None])


def _probs(q, k, positions, before, after, lengths, scale):
    """Return probabilities (B,K,N/K,Q,S) before dropout; a query that sees no key has zeros."""
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

    num_key_heads, share = q.shape[1:3]
    grad_BQKGD = grad.unflatten(-1, (num_key_heads, share, -1))
    grad_context = grad_BQKGD.movedim(1, 3).to(q.dtype)
    grad_probs = drop(grad_context @ v.mT)
    grad_scores = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True)) * scale
    # Heads of queries that share keys add up their gradients.
    grad_k = (grad_scores.mT @ q).sum(2, keepdim=True)
    grad_v = (drop(probs).mT @ grad_context).sum(2, keepdim=True)
    grad_keys_values = _joined(grad_k, grad_v).to(keys_values.dtype)
    return grad_keys_values, _joined(grad_scores @ k).to(queries.dtype)


# These are fakes because the references take seconds to trace.
def _forward_fake(keys_values, queries, *_):
    return queries.new_empty(queries.shape)


def _backward_fake(grad, keys_values, queries, *_):
    return keys_values.new_empty(keys_values.shape), queries.new_empty(queries.shape)


_ARGUMENTS = (
    "Tensor keys_values, Tensor queries, int num_heads, Tensor positions, int before, int after, "
    "Tensor? lengths, float p, Tensor? row_keys, float scale"
)
_forward = define(
    f"window_attention({_ARGUMENTS}) -> Tensor",
    _forward_reference,
    _forward_fake,
)
_backward_op = define(
    f"window_attention_backward(Tensor grad, {_ARGUMENTS}) "
    "-> (Tensor grad_keys_values, Tensor grad_queries)",
    _backward_reference,
    _backward_fake,
)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale = inputs
    ctx.settings = num_heads, before, after, p, scale
    ctx.save_for_backward(keys_values, queries, positions, lengths, row_keys)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    num_heads, before, after, p, scale = ctx.settings
    keys_values, queries, positions, lengths, row_keys = ctx.saved_tensors
    grads = _backward_op(
        grad, keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale
    )
    return *grads, *(None,) * 8


fused_window_attention = differentiate(_forward, _setup_context, _backward)


def torch_window_attention(
    keys_values: Tensor, queries: Tensor, num_heads: int, seen: Tensor | None, scale: float
) -> Tensor:
    """Compute `window_attention` without dropout, by torch's kernels -> (B,Q,N*D).

    Without a mask flash and cuDNN let heads share keys. Where a mask or another kernel serves, the
    keys are repeated for each head: torch's other kernels would keep all scores.

    Args:
        keys_values: (B,S,2*K*D).
        queries: (B,Q,N*D).
        num_heads: N.
        seen: which keys are seen, (1,Q,S) or (B,Q,S); None: of S queries each sees those up to its
            position.
        scale: of the scores.
    """
    width = queries.shape[-1] // num_heads
    keys, values = keys_values.chunk(2, -1)
    q = queries.unflatten(-1, (-1, width)).transpose(1, 2)
    k = keys.unflatten(-1, (-1, width)).transpose(1, 2)
    v = values.unflatten(-1, (-1, width)).transpose(1, 2)
    share = num_heads // k.shape[1]
    if share > 1 and not (seen is None and _lets_heads_share(q, k, v)):
        k = k.repeat_interleave(share, 1)
        v = v.repeat_interleave(share, 1)
        share = 1
    if seen is None:
        context = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=share > 1
        )
        return context.transpose(1, 2).flatten(2)
    seen = seen[:, None]
    # torch may give nan where a query sees nothing: it gets all keys, and then zeros.
    blind = ~seen.any(-1, keepdim=True)
    context = masked_attention(q, k, v, seen | blind, scale)
    return context.masked_fill(blind, 0).transpose(1, 2).flatten(2)


def _lets_heads_share(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether torch's attention, causal and without a mask, takes fewer heads of keys."""
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
    """Compute scaled dot-product attention to the keys in a window around each query.

    A query that sees no key attends to nothing.

    Args:
        keys_values: (B,S,2*K*D), keys before values; N/K heads of queries in a row share one of
            keys.
        queries: (B,Q,N*D).
        num_heads: N.
        positions: of the queries, (B,Q) int64, or of all rows (Q,); S of them are 0 … S - 1.
        window: how many keys before and after its position a query sees; None: all.
        lengths: (B,) int32, how many keys of each row are real; None: all.
        p: the rate of dropout of the probabilities.
        row_keys: (B,N,Q) int32, the row keys of that dropout; None: no dropout.
        scale: of the scores; None: 1/sqrt(D).

    Returns:
        (B,Q,N*D).
    """
    if p == 0:
        row_keys = None
    width = queries.shape[-1] // num_heads
    num_keys = keys_values.shape[1]
    before = num_keys if window[0] is None else window[0]
    after = num_keys if window[1] is None else window[1]
    sees_all_before = before >= num_keys - 1
    sees_all_after = after >= num_keys - 1
    default_scale = width**-0.5
    scale = default_scale if scale is None else scale
    heads_share = keys_values.shape[-1] != 2 * num_heads * width
    if sees_all_before and sees_all_after and not heads_share and scale == default_scale:
        return attention(keys_values, num_heads, lengths, p, row_keys, queries)
    if device_type(queries.device) == "cuda" and row_keys is None:
        all_queries = positions.shape == (num_keys,)
        causal = all_queries and after == 0 and sees_all_before and lengths is None
        if not queries.is_meta:
            seen = None if causal else keys_in_window(num_keys, positions, before, after, lengths)
            return torch_window_attention(keys_values, queries, num_heads, seen, scale)
        # A forecast of memory counts keys for each head unless flash, which lets heads share, is
        # sure to serve.
        if heads_share and not (causal and queries.dtype == torch.bfloat16):
            heads = keys_values.unflatten(-1, (-1, width))
            keys_values = heads.repeat_interleave(2 * num_heads // heads.shape[2], 2).flatten(2)
    return fused_window_attention(
        keys_values, queries, num_heads, positions, before, after, lengths, p, row_keys, scale
    )
