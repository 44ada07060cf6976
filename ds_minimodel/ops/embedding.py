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
    """`embedding` of a table whose two uses, by tokens and as output projection, meet here.

    In the backward pass the few rows of a batch are added to the projection's gradient in place;
    autograd would make a whole table of them, mostly zeros, and add that. They are added up in
    float32 and rounded once. torch adds up a bf16 table's in bf16, by which a token that comes
    hundreds of times in a batch, as <mask> does, loses a fiftieth of its gradient. At ZeRO 3 the
    second output keeps the gathered table until then.
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
        flat = tokens.flatten()
        if tokens.is_meta:
            # Where there are no values, each token counts as another.
            rows_R = flat
            index = flat
        else:
            rows_R, index = flat.unique(return_inverse=True)
        sums_RH = grad.new_zeros(len(rows_R), ctx.shape[1], dtype=accumulation_dtype(grad.dtype))
        sums_RH.index_add_(0, index, grad.reshape(-1, ctx.shape[1]).to(sums_RH.dtype))
        if grad_table is None:
            grad_table = grad.new_zeros(ctx.shape)
        else:
            sums_RH += grad_table.index_select(0, rows_R)
        return None, grad_table.index_copy_(0, rows_R, sums_RH.to(grad_table.dtype))


def embedding(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Look up the rows of `weight` by token.

    Args:
        tokens: (...) int64.
        weight: (V, H).

    Returns:
        The rows (..., H), and `weight` as the table (V, H) of the output projection. The gradient
        of that table is written to on the CPU, so its user must return a tensor that nothing else
        reads, as linear_cross_entropy does.
    """
    trains_on_cpu = device_type(weight.device) == "cpu" and weight.requires_grad
    if trains_on_cpu and not torch.compiler.is_compiling():
        return _TiedEmbedding.apply(tokens, weight)
    # A view of the parameter keeps what was gathered at ZeRO 3.
    return F.embedding(tokens, weight), weight.view_as(weight)
