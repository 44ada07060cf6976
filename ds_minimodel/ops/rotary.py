"""Rotary positions: queries and keys turned by angles that grow with their position (RoFormer, Su et al. 2021).

By torch's operators; no kernels yet. Shapes: B batch, S sequence, N heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x_BSH: Tensor, num_heads: int, positions: Tensor, base: float) -> Tensor:
    """x (B, S, N*D), each head turned by the angle position / base^(2i/D) in its plane (i, i + D/2); in fp32 inside.

    positions: (S,) or (B, S), whole numbers. As in Llama's and ModernBERT's published code.
    """
    size = x_BSH.shape[-1] // num_heads
    # As that code has it: of base ** -x the last bits differ, which thousands of positions multiply.
    waves = 1.0 / base ** (torch.arange(0, size, 2, device=x_BSH.device, dtype=torch.float32) / size)
    angles = positions[..., None, None].float() * waves  # (…, S, 1, D/2)
    cosine, sine = angles.cos(), angles.sin()
    first, second = (
        x_BSH.unflatten(-1, (num_heads, size)).to(torch.promote_types(x_BSH.dtype, torch.float32)).chunk(2, -1)
    )
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return turned.to(x_BSH.dtype).flatten(-2)
