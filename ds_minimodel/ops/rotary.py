"""Rotary positions: queries and keys turned by angles that grow with their position (RoFormer, Su et al. 2021).

By torch's operators; no kernels yet. Shapes: B batch, S sequence, N heads, D head width, C columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(waves: Tensor, length: int) -> Tensor:
    """Cosines and sines of the angles of the positions 0 … length - 1 -> (length, 2, D/2) fp32.

    waves: (D/2,) fp32, the angle between two positions in each plane.
    """
    angles = torch.arange(length, device=waves.device, dtype=torch.float32)[:, None] * waves
    return torch.stack((angles.cos(), angles.sin()), 1)


def rotary(x: Tensor, num_heads: int, table: Tensor, positions: Tensor | None = None) -> Tensor:
    """x (B, S, C) with its first N*D columns turned, each head in its planes (i, i + D/2); the others stay.

    table: of rotary_table. positions: (S,) or (B, S), whole numbers below the table's length; None: 0 … S - 1.
    In fp32 inside, as in Llama's and ModernBERT's published code.
    """
    turns = table[: x.shape[1]] if positions is None else table[positions]
    cosine, sine = turns.unsqueeze(-3).unbind(-2)  # (…, S, 1, D/2)
    width = num_heads * 2 * table.shape[-1]
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x[..., :width].unflatten(-1, (num_heads, -1)).to(wide).chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype).flatten(-2)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), -1)
