"""Attention of queries to the keys near them, by torch's operators; no kernels yet.

Shape legend: B batch, N heads, Q queries, S keys, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dropout import dropout
from .library import accumulation_dtype


def window_attention(
    keys_values: Tensor,
    queries: Tensor,
    num_heads: int,
    positions: Tensor,
    reach: int,
    lengths: Tensor | None = None,
    p: float = 0.0,
    row_keys: Tensor | None = None,
) -> Tensor:
    """Scaled dot-product attention (B,Q,N*D) of queries (B,Q,N*D) to the keys at most `reach` positions away.

    keys_values: (B,S,2*N*D), keys before values. positions: of the queries, (Q,) or (B,Q). lengths: (B,) keys that each
    row has, None for all; queries beyond them see every key, so that no row is without one. p, row_keys: dropout of the
    probabilities, as of `attention`.
    """
    k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in keys_values.chunk(2, -1))  # (B,N,S,D)
    q = queries.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    places_S = torch.arange(keys_values.shape[1], device=q.device)
    seen = (positions[..., None] - places_S).abs() <= reach  # (Q,S) or (B,Q,S)
    if lengths is not None:
        ends_B11 = lengths[:, None, None]
        seen = (seen & (places_S < ends_B11)) | (positions.expand(len(lengths), -1)[..., None] >= ends_B11)
    scores = (q @ k.mT).to(accumulation_dtype(q.dtype)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~(seen if seen.dim() == 2 else seen[:, None]), -torch.inf)
    probs = dropout(scores.softmax(-1), p, row_keys)
    return (probs.to(v.dtype) @ v).transpose(1, 2).flatten(2)
