"""Rotary positions: queries and keys turned by angles that grow with their position.

RoFormer, Su et al. 2021. Shapes: B batch, S sequence, N heads, D head width, C columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ds_minimodel.ops.library import accumulation_dtype, define, differentiate


def rotary_table(waves: Tensor, length: int) -> Tensor:
    """Return cosines and sines of the angles of the positions 0 … length - 1.

    Args:
        waves: (D/2,) fp32, the angle between two positions in each plane.
        length: how many positions.

    Returns:
        (length, 2, D/2) fp32.
    """
    angles = torch.arange(length, device=waves.device, dtype=torch.float32)[:, None] * waves
    return torch.stack((angles.cos(), angles.sin()), 1)


def _reference(
    x: Tensor, table: Tensor, num_heads: int, positions: Tensor | None, back: bool
) -> Tensor:
    turns = table[: x.shape[1]] if positions is None else table[positions]
    # All heads turn alike: (…, S, 1, D/2).
    cosine, sine = turns.unsqueeze(-3).unbind(-2)
    if back:
        sine = -sine
    width = num_heads * 2 * table.shape[-1]
    heads = x[..., :width].unflatten(-1, (num_heads, -1))
    first, second = heads.to(accumulation_dtype(x.dtype)).chunk(2, -1)
    turned_first = first * cosine - second * sine
    turned_second = second * cosine + first * sine
    turned = torch.cat((turned_first, turned_second), -1).to(x.dtype).flatten(-2)
    return torch.cat((turned, x[..., width:]), -1)


_rotary = define(
    "rotary(Tensor x, Tensor table, int num_heads, Tensor? positions, bool back) -> Tensor",
    _reference,
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    _, table, ctx.num_heads, positions, ctx.back = inputs
    ctx.save_for_backward(table, positions)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    # The gradient of a turn is the turn back.
    table, positions = ctx.saved_tensors
    return _rotary(grad, table, ctx.num_heads, positions, not ctx.back), None, None, None, None


_differentiable = differentiate(_rotary, _setup_context, _backward)


def rotary(x: Tensor, num_heads: int, table: Tensor, positions: Tensor | None = None) -> Tensor:
    """Turn the first N*D columns of `x`, each head in its planes (i, i + D/2).

    The other columns stay. It computes in fp32, as Llama's and ModernBERT's published code does.

    Args:
        x: (B, S, C).
        num_heads: N, how many heads are turned.
        table: (length, 2, D/2), as rotary_table returns it.
        positions: (S,) or (B, S) int64, below the table's length; None: 0 … S - 1.

    Raises:
        RuntimeError: a position is outside the table; a GPU raises it when the host next waits.
    """
    if positions is not None:
        are_inside = ((positions >= 0) & (positions < len(table))).all()
        torch._assert_async(are_inside, "rotary: position outside the table")
    return _differentiable(x, table, num_heads, positions, False)
