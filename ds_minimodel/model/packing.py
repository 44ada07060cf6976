"""Packing: all operations but attention run on the real tokens of a padded batch alone.

A packed batch is (T, 1, H): each of its T real tokens is a row of its own. Other shapes as in transformer.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Packing:
    """Places of the real tokens of a padded batch, and conversion between the padded and the packed layout.

    real_T: int64 index of each real token in the batch's B*S positions, rising.
    """

    def __init__(self, real_T: Tensor, batch_size: int, width: int):
        self.real_T, self.batch_size, self.width = real_T, batch_size, width
        self.row_T, self.position_T1 = real_T // width, (real_T % width)[:, None]

    def pack(self, x_BSH: Tensor) -> Tensor:
        """(B, S, H) -> (T, 1, H)"""
        return _Pick.apply(x_BSH.flatten(0, 1), self.real_T)[:, None]

    def pad(self, x_T1H: Tensor) -> Tensor:
        """(T, 1, H) -> (B, S, H), zero where there is no token."""
        placed_PH = _Place.apply(x_T1H[:, 0], self.real_T, self.batch_size * self.width)
        return placed_PH.unflatten(0, (self.batch_size, self.width))


# The index has no duplicates, so that each is the other's gradient, without atomic additions.
class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PH: Tensor, real_T: Tensor) -> Tensor:
        ctx.save_for_backward(real_T)
        ctx.num_positions = len(x_PH)
        return x_PH.index_select(0, real_T)

    @staticmethod
    def backward(ctx: Any, grad_TH: Tensor) -> tuple[Tensor, None]:
        (real_T,) = ctx.saved_tensors
        return _place(grad_TH, real_T, ctx.num_positions), None


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TH: Tensor, real_T: Tensor, num_positions: int) -> Tensor:
        ctx.save_for_backward(real_T)
        return _place(x_TH, real_T, num_positions)

    @staticmethod
    def backward(ctx: Any, grad_PH: Tensor) -> tuple[Tensor, None, None]:
        (real_T,) = ctx.saved_tensors
        return grad_PH.index_select(0, real_T), None, None


def _place(x_TH: Tensor, real_T: Tensor, num_positions: int) -> Tensor:
    return x_TH.new_zeros(num_positions, x_TH.shape[1]).index_copy_(0, real_T, x_TH)
