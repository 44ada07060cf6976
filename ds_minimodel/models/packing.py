"""Packing: all operations but attention run on the real tokens of a padded batch alone.

A packed batch is (R, 1, H): each of its T real tokens is a row of its own, and rows beyond them, where there are any,
belong to no token. Other shapes as in body.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class Packing:
    """Places of the real tokens of a padded batch, and conversion between the padded and the packed layout.

    real_T: int64 index of each real token in the batch's B*S positions, rising. num_rows: R, by default T. The rows
    beyond T are zero wherever they enter, count as position 0 of sample 0, and come out nowhere: they make the shapes
    of products few (ops.rows_for_few_shapes) and change no result.
    """

    def __init__(self, real_T: Tensor, batch_size: int, width: int, num_rows: int | None = None):
        self.real_T, self.batch_size, self.width = real_T, batch_size, width
        self.num_rows = len(real_T) if num_rows is None else num_rows
        self.row_R = self.extend(real_T // width, 0)
        self.position_R1 = self.extend(real_T % width, 0)[:, None]

    def extend(self, values_T: Tensor, filler: int) -> Tensor:
        """(T,) -> (R,)"""
        extra = self.num_rows - len(values_T)
        return F.pad(values_T, (0, extra), value=filler) if extra else values_T

    def pack(self, x_BSH: Tensor) -> Tensor:
        """(B, S, H) -> (R, 1, H)"""
        return _Pick.apply(x_BSH.flatten(0, 1), self.real_T, self.num_rows)[:, None]

    def pad(self, x_R1H: Tensor) -> Tensor:
        """(R, 1, H) -> (B, S, H), zero where there is no token."""
        placed_PH = _Place.apply(x_R1H[:, 0], self.real_T, self.batch_size * self.width)
        return placed_PH.unflatten(0, (self.batch_size, self.width))


# The index has no duplicates, so that each is the other's gradient, without atomic additions.
class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PH: Tensor, real_T: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(real_T)
        ctx.num_positions = len(x_PH)
        return _pick(x_PH, real_T, num_rows)

    @staticmethod
    def backward(ctx: Any, grad_RH: Tensor) -> tuple[Tensor, None, None]:
        (real_T,) = ctx.saved_tensors
        return _place(grad_RH, real_T, ctx.num_positions), None, None


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RH: Tensor, real_T: Tensor, num_positions: int) -> Tensor:
        ctx.save_for_backward(real_T)
        ctx.num_rows = len(x_RH)
        return _place(x_RH, real_T, num_positions)

    @staticmethod
    def backward(ctx: Any, grad_PH: Tensor) -> tuple[Tensor, None, None]:
        (real_T,) = ctx.saved_tensors
        return _pick(grad_PH, real_T, ctx.num_rows), None, None


def _pick(x_PH: Tensor, real_T: Tensor, num_rows: int) -> Tensor:
    if num_rows == len(real_T):
        return x_PH.index_select(0, real_T)
    picked_RH = x_PH.new_zeros(num_rows, x_PH.shape[1])
    picked_RH[: len(real_T)] = x_PH.index_select(0, real_T)
    return picked_RH


def _place(x_RH: Tensor, real_T: Tensor, num_positions: int) -> Tensor:
    return x_RH.new_zeros(num_positions, x_RH.shape[1]).index_copy_(0, real_T, x_RH[: len(real_T)])
