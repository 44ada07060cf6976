"""Padded batches without work on the padding: all but attention runs on the real tokens alone.

A packed batch is (T, 1, H): each of its T real tokens is a row of its own. Other shapes as in transformer.py.
"""

import torch


class Packing:
    """Where the real tokens of a padded batch are, and the way between the two layouts.

    real_T: int64 index of each real token in the batch's B*S positions, rising.
    """

    def __init__(self, real_T, batch_size, width):
        self.real_T, self.batch_size, self.width = real_T, batch_size, width
        self.row_T, self.position_T1 = real_T // width, (real_T % width)[:, None]

    def pack(self, x_BSH):
        """(B, S, H) -> (T, 1, H)"""
        return _Pick.apply(x_BSH.flatten(0, 1), self.real_T)[:, None]

    def pad(self, x_T1H):
        """(T, 1, H) -> (B, S, H), zero where there is no token."""
        placed_PH = _Place.apply(x_T1H[:, 0], self.real_T, self.batch_size * self.width)
        return placed_PH.unflatten(0, (self.batch_size, self.width))


# The index has no duplicates, so that each is the other's gradient, without atomic additions.
class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_PH, real_T):
        ctx.save_for_backward(real_T)
        ctx.num_positions = len(x_PH)
        return x_PH.index_select(0, real_T)

    @staticmethod
    def backward(ctx, grad_TH):
        (real_T,) = ctx.saved_tensors
        return _place(grad_TH, real_T, ctx.num_positions), None


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TH, real_T, num_positions):
        ctx.save_for_backward(real_T)
        return _place(x_TH, real_T, num_positions)

    @staticmethod
    def backward(ctx, grad_PH):
        (real_T,) = ctx.saved_tensors
        return grad_PH.index_select(0, real_T), None, None


def _place(x_TH, real_T, num_positions):
    return x_TH.new_zeros(num_positions, x_TH.shape[1]).index_copy_(0, real_T, x_TH)
