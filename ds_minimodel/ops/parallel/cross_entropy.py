"""Linear layer and cross-entropy over a vocabulary that is split over ranks, by chunks.

Shape legend: P positions, H hidden, V this rank's part of the vocabulary, R rows of one chunk.

Ranks exchange two numbers a position: the log-sum-exp of their part of the logits, and the target's
logit where they hold it. The gradient is made chunk by chunk in the forward pass and only scaled in
the backward pass, as in ops/cross_entropy.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops.cross_entropy import add_chunk_gradients, scaled, scores
from ds_minimodel.ops.library import accumulation_dtype
from ds_minimodel.ops.matmul import upcast_if_emulated
from ds_minimodel.ops.parallel.group import Group
from ds_minimodel.ops.parallel.mappings import all_gather, copy

# Rows of logits held at once, in float32.
CHUNK_ROWS = 1024

Ranges = Sequence[range]


def local_index(ids: Tensor, rows: Ranges) -> tuple[Tensor, Tensor]:
    """Find ids among the rows of the vocabulary that this rank holds.

    Args:
        ids: int64, in the whole vocabulary.
        rows: the ranges of ids that this rank holds, one below the other.

    Returns:
        Whether each id is held, and its index among the rows; 0 where it is not.
    """
    is_local = torch.zeros_like(ids, dtype=torch.bool)
    index = torch.zeros_like(ids)
    num_above = 0
    for part in rows:
        inside = (ids >= part.start) & (ids < part.stop)
        is_local = is_local | inside
        index = torch.where(inside, ids - part.start + num_above, index)
        num_above += len(part)
    return is_local, index


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    rows: Ranges,
    group: Group,
    base: Tensor | None = None,
) -> Tensor:
    """Return the sum of cross-entropies of x @ weight.T + bias over the whole vocabulary.

    Args:
        x: (P,H), the same on every rank.
        weight: (V,H), the rows that this rank holds.
        bias: (V,), or None.
        targets: (P,) int64, ids in the whole vocabulary; those equal to IGNORED give no loss.
        rows: the ranges of ids that this rank holds.
        group: the ranks over which the vocabulary is split.
        base: as of ops.linear_cross_entropy.

    Returns:
        A float32 scalar, the same on every rank.
    """
    return _LinearCrossEntropy.apply(copy(x, group), weight, bias, targets, rows, group, base)


class _LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy` without the sum of the gradients of x over the ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: Ranges,
        group: Group,
        base: Tensor | None,
    ) -> Tensor:
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dtype = accumulation_dtype(x.dtype)
        loss = x.new_zeros((), dtype=dtype)
        grad_x = torch.empty_like(x) if needs_x else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if needs_weight else None
        grad_bias = None if bias is None or not needs_bias else torch.zeros_like(bias, dtype=dtype)
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        # They are cast once, not for every product.
        weight, base = upcast_if_emulated(weight, base)
        for start in range(0, len(x), CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            logits_RV = scores(x[chunk], weight, base)
            chunk_loss, grad_RV = _loss_and_logit_grad(logits_RV, bias, targets[chunk], rows, group)
            loss += chunk_loss
            add_chunk_gradients(
                grad_RV,
                x[chunk],
                weight,
                base,
                grad_x_RH=None if grad_x is None else grad_x[chunk],
                grad_weight_NH=grad_weight,
                grad_bias_V=grad_bias,
            )
        ctx.grads = grad_x, grad_weight, grad_bias
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        return *scaled(ctx.grads, grad_loss, ctx.dtypes), None, None, None, None


def _loss_and_logit_grad(
    logits_RV: Tensor, bias: Tensor | None, targets_R: Tensor, rows: Ranges, group: Group
) -> tuple[Tensor, Tensor]:
    """Return (sum of the losses, d sum / d logits) of a chunk, by the whole vocabulary."""
    losses_R, scores_RV, normaliser_R, is_local, column = losses(
        logits_RV, bias, targets_R, rows, group
    )
    probs_RV = scores_RV.sub_(normaliser_R[:, None]).exp_()
    probs_RV.scatter_add_(-1, column, -is_local[:, None].to(probs_RV.dtype))
    grad_RV = probs_RV.mul_((targets_R != IGNORED)[:, None])
    return losses_R.sum(), grad_RV.to(logits_RV.dtype)


def losses(
    logits_RV: Tensor, bias: Tensor | None, targets_R: Tensor, rows: Ranges, group: Group
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the losses of a chunk, and what its gradient is made of.

    Returns:
        Losses (R,), this rank's scores (R, V), the logarithm of each row's sum of exponentials
        (R,), whether this rank has the target's column (R,), and which that is (R, 1).
    """
    scores_RV = logits_RV.to(accumulation_dtype(logits_RV.dtype), copy=True)
    if bias is not None:
        scores_RV += bias
    used = targets_R != IGNORED
    is_held, index = local_index(targets_R, rows)
    is_local = used & is_held
    column = index[:, None]
    own_normaliser_R = torch.logsumexp(scores_RV, -1)
    own_target_score_R = torch.where(is_local, scores_RV.gather(-1, column)[:, 0], 0)
    parts = torch.stack((own_normaliser_R, own_target_score_R))
    gathered = all_gather(parts, group) if group.size > 1 else [parts]
    normalisers, target_scores = torch.stack(gathered, 1)
    normaliser_R = torch.logsumexp(normalisers, 0)
    losses_R = torch.where(used, normaliser_R - target_scores.sum(0), 0)
    return losses_R, scores_RV, normaliser_R, is_local, column
