"""Attention of queries to a range of keys around them, with heads that may share keys, by torch's operators.

Shape legend: B batch, N heads of queries, K heads of keys, Q queries, S keys, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import attention
from .dropout import dropout
from .library import accumulation_dtype

Window = tuple[int | None, int | None]  # how many keys before and after its own a query sees; None: all

EVERYTHING: Window = (None, None)
CAUSAL: Window = (None, 0)


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
    """Scaled dot-product attention (B,Q,N*D) of queries (B,Q,N*D) to the keys in a window around them.

    keys_values: (B,S,2*K*D), keys before values; N/K heads of queries in a row share one of keys. positions: of the
    queries, (Q,) or (B,Q). window: (before, after). lengths: (B,) keys that each row has, None for all; queries beyond
    them see every key, so that no row is without one. p, row_keys: dropout of the probabilities, as of `attention`.
    scale: of the scores, 1/sqrt(D) by default.
    """
    width, num_keys = queries.shape[-1] // num_heads, keys_values.shape[1]
    num_key_heads = keys_values.shape[-1] // (2 * width)
    before, after = (reach if reach is not None and reach < num_keys - 1 else None for reach in window)
    if (before, after) == EVERYTHING and num_key_heads == num_heads and scale is None:
        return attention(keys_values, num_heads, lengths, p, row_keys, queries)
    k, v = (part.unflatten(-1, (num_key_heads, -1)).transpose(1, 2) for part in keys_values.chunk(2, -1))  # (B,K,S,D)
    if num_key_heads < num_heads:
        k, v = (part.repeat_interleave(num_heads // num_key_heads, 1) for part in (k, v))
    q = queries.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    scores = (q @ k.mT).to(accumulation_dtype(q.dtype)) * (width**-0.5 if scale is None else scale)
    seen = _seen(positions, num_keys, before, after, lengths)
    if seen is not None:
        scores = scores.masked_fill(~(seen if seen.dim() == 2 else seen[:, None]), -torch.inf)
    probs = dropout(scores.softmax(-1), p, row_keys)
    return (probs.to(v.dtype) @ v).transpose(1, 2).flatten(2)


def _seen(
    positions: Tensor, num_keys: int, before: int | None, after: int | None, lengths: Tensor | None
) -> Tensor | None:
    """Which keys each query sees, (Q,S) or (B,Q,S); None: all."""
    places_S = torch.arange(num_keys, device=positions.device)
    ahead = places_S - positions[..., None]  # (Q,S) or (B,Q,S)
    seen = None
    if before is not None:
        seen = ahead >= -before
    if after is not None:
        seen = ahead <= after if seen is None else seen & (ahead <= after)
    if lengths is not None:
        ends_B11 = lengths[:, None, None]
        real = (places_S < ends_B11).expand(len(lengths), len(ahead[0]) if ahead.dim() == 3 else len(ahead), num_keys)
        beyond = positions.expand(len(lengths), -1)[..., None] >= ends_B11
        seen = (real if seen is None else seen & real) | beyond
    return seen
