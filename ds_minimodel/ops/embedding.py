"""Embedding lookup from a table that may also serve as the output projection.

Shapes: tokens (...) int64, weight (V, H); R rows that the batch has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.library import accumulation_dtype
from ds_minimodel.ops.loading import device_type


class _TiedEmbedding(torch.autograd.Function):
    """Outputs: the rows, and the table for the output projection.

    Both uses meet here in the backward pass. So the few rows of a batch are added to the
    projection's gradient in place, where autograd would make a whole table of them, mostly zeros,
    and add that. They are added up in float32 and rounded once; torch adds up a bf16 table's in
    bf16, by which a token that comes hundreds of times in a batch, as <mask> does, loses a fiftieth
    of its gradient. At ZeRO 3 the second output keeps the gathered table until then.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens)
        ctx.shape = weight.shape
        return F.embedding(tokens, weight), weight.view_as(weight)

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor | None, grad_table: Tensor | None
    ) -> tuple[None, Tensor | None]:
        if grad is None:
            return None, grad_table
        (tokens,) = ctx.saved_tensors
        rows_R = place = tokens.flatten()
        if not tokens.is_meta:  # where there are no values, each token counts as another
            rows_R, place = rows_R.unique(return_inverse=True)
        sums_RH = grad.new_zeros(len(rows_R), ctx.shape[1], dtype=accumulation_dtype(grad.dtype))
        sums_RH.index_add_(0, place, grad.reshape(-1, ctx.shape[1]).to(sums_RH.dtype))
        if grad_table is None:
            grad_table = grad.new_zeros(ctx.shape)
        else:
            sums_RH += grad_table.index_select(0, rows_R)
        return None, grad_table.index_copy_(0, rows_R, sums_RH.to(grad_table.dtype))


def embedding(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of `weight` by token -> ((..., H), table (V, H)).

    table: `weight`, to be used where it also is the output projection. On the CPU what its user
    returns as its gradient is then written to, so that must be a tensor of its own, as
    linear_cross_entropy's is.
    """
    if (
        device_type(weight.device) != "cpu"
        or not weight.requires_grad
        or torch.compiler.is_compiling()
    ):
        return F.embedding(tokens, weight), weight.view_as(
            weight
        )  # at ZeRO 3 it keeps what was gathered
    return _TiedEmbedding.apply(tokens, weight)
