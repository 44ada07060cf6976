"""Linear layer and cross-entropy over a large vocabulary, by chunks of the logits.

Shape legend: P positions, H hidden, V vocabulary, R rows of one chunk, K rows of a base that stand
before the N rows that train (V = K + N).

The forward pass turns the logits of a chunk into their gradient in place. When all positions fit in
one chunk, that gradient is kept and the backward pass makes its two products; otherwise, and where
rows of a base stand before those that train, the products are made chunk by chunk in the forward
pass and only scaled in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops.cpu import has_bf16_products
from ds_minimodel.ops.library import accumulation_dtype, define, differentiate
from ds_minimodel.ops.loading import device_type
from ds_minimodel.ops.matmul import add_product_, product, upcast_if_emulated

# Rows of logits held at once. Fewer make the products too thin, more only cost memory.
CHUNK_ROWS = {"cpu": 320, "cuda": 2048}
# The same on CPUs with bf16 products: there the gradient of the weight by each chunk is added to
# one in fp32, which costs as much as the product of 300 rows.
CHUNK_ROWS_BF16 = 2048
# Rows of logits held at once where each target's loss is wanted.
TOKEN_ROWS = 320
# Columns that are added up at once on CPUs.
SUMMED_COLUMNS = 512


def _losses(
    logits: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the losses of a chunk, and what its gradient is made of.

    Returns:
        Losses (R,), scores (R, V), logarithms of their sums of exponentials (R,), whether a target
        counts (R,), and its column (R, 1).
    """
    scores = logits.to(accumulation_dtype(logits.dtype), copy=True)
    if bias is not None:
        scores += bias
    log_normaliser = torch.logsumexp(scores, -1)
    used = targets != IGNORED
    column = torch.where(used, targets, 0)[:, None]
    losses = torch.where(used, log_normaliser - scores.gather(-1, column)[:, 0], 0)
    return losses, scores, log_normaliser, used, column


def _loss_and_logit_grad_reference(
    logits: Tensor, bias: Tensor | None, targets: Tensor, needs_grad: bool
) -> Tensor:
    losses, scores, log_normaliser, used, column = _losses(logits, bias, targets)
    if needs_grad:
        # The gradient is the probabilities, less 1 in the target's column; 0 where none counts.
        probs = scores.sub_(log_normaliser[:, None]).exp_()
        probs.scatter_add_(-1, column, probs.new_full((), -1.0).expand(column.shape))
        logits.copy_(probs.mul_(used[:, None]))
    return losses.sum()


# The logits come without the bias, and leave as d loss / d logits if needs_grad.
_loss_and_logit_grad_ = define(
    "cross_entropy_(Tensor(a!) logits, Tensor? bias, Tensor targets, bool needs_grad) -> Tensor",
    _loss_and_logit_grad_reference,
)


def _chunk_rows(x: Tensor, base: Tensor | None = None) -> int:
    """Return how many rows of logits are held at once for `x` (P, H)."""
    device = device_type(x.device)
    if device == "cpu" and x.dtype == torch.bfloat16 and has_bf16_products() and base is None:
        return CHUNK_ROWS_BF16
    return CHUNK_ROWS.get(device, CHUNK_ROWS["cuda"])


def _is_one_chunk(x: Tensor, base: Tensor | None) -> bool:
    """Return whether all logits of `x` are held at once, and so their gradient is kept."""
    return base is None and x.shape[0] <= _chunk_rows(x)


def scores(
    x_RH: Tensor, weight_NH: Tensor, base_KH: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Return the products with the rows of a base, if there is one, and of the weight (R, K + N).

    Args:
        x_RH: rows of one chunk.
        weight_NH: the rows that train.
        base_KH: the rows before them, or None.
        out: where the products are written to; None: a new tensor.
    """
    if base_KH is None:
        return product(x_RH, weight_NH.T, out=out)
    by_base_RK = product(x_RH, base_KH.T)
    by_weight_RN = product(x_RH, weight_NH.T)
    return torch.cat((by_base_RK, by_weight_RN), -1, out=out)


def _forward_by_chunks(x, weight, bias, targets, base, needs_x, needs_weight, needs_bias):
    """Compute the operator on every device; only the loss of a chunk is compiled code.

    An output that is not wanted is empty.
    """
    needs_grad = needs_x or needs_weight or needs_bias
    dtype = accumulation_dtype(x.dtype)
    unwanted_logits = x.new_empty(0)
    unwanted_x = x.new_empty(0)
    if _is_one_chunk(x, base):
        logits_PV = product(x, weight.T)
        loss = _loss_and_logit_grad_(logits_PV, bias, targets, needs_grad)
        grad_logits = logits_PV if needs_grad else unwanted_logits
        unwanted_weight = x.new_empty(0, dtype=dtype)
        unwanted_bias = x.new_empty(0, dtype=dtype)
        return loss, grad_logits, unwanted_x, unwanted_weight, unwanted_bias

    loss = x.new_zeros((), dtype=dtype)
    vocab_size = len(weight) + (0 if base is None else len(base))
    grad_x = torch.empty_like(x) if needs_x else unwanted_x
    grad_weight = weight.new_zeros(weight.shape if needs_weight else 0, dtype=dtype)
    grad_bias = weight.new_zeros(vocab_size if needs_bias else 0, dtype=dtype)
    num_rows = _chunk_rows(x, base)
    buffer_RV = x.new_empty(min(num_rows, len(x)), vocab_size)
    # They are cast once, not for every product.
    weight, base = upcast_if_emulated(weight, base)
    for start in range(0, len(x), num_rows):
        chunk = slice(start, start + num_rows)
        x_RH = x[chunk]
        logits_RV = scores(x_RH, weight, base, out=buffer_RV[: len(x_RH)])
        loss += _loss_and_logit_grad_(logits_RV, bias, targets[chunk], needs_grad)
        add_chunk_gradients(
            logits_RV,
            x_RH,
            weight,
            base,
            grad_x_RH=grad_x[chunk] if needs_x else None,
            grad_weight_NH=grad_weight if needs_weight else None,
            grad_bias_V=grad_bias if needs_bias else None,
        )
    return loss, unwanted_logits, grad_x, grad_weight, grad_bias


def add_chunk_gradients(
    grad_logits_RV: Tensor,
    x_RH: Tensor,
    weight_NH: Tensor,
    base_KH: Tensor | None,
    grad_x_RH: Tensor | None,
    grad_weight_NH: Tensor | None,
    grad_bias_V: Tensor | None,
) -> None:
    """Write a chunk's gradient of x, and add those of weight and bias; None is not wanted.

    Args:
        grad_logits_RV: the gradient of the chunk's logits.
        x_RH: the chunk's rows of x.
        weight_NH: the rows that train.
        base_KH: the rows before them, or None.
        grad_x_RH: is overwritten.
        grad_weight_NH: is added to.
        grad_bias_V: is added to.
    """
    num_base = grad_logits_RV.shape[1] - len(weight_NH)
    grad_base_RK, grad_own_RN = grad_logits_RV.tensor_split([num_base], 1)
    if grad_x_RH is not None:
        product(grad_own_RN, weight_NH, out=grad_x_RH)
        if base_KH is not None:
            add_product_(grad_x_RH, grad_base_RK, base_KH)
    if grad_weight_NH is not None:
        add_product_(grad_weight_NH, grad_own_RN.T, x_RH)
    if grad_bias_V is not None:
        grad_bias_V += column_sums(grad_logits_RV, grad_bias_V.dtype)


def column_sums(rows_RV: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums of the columns (V,) in `dtype`.

    A CPU adds up blocks of columns, because torch first copies there what it adds up to `dtype`.
    """
    columns = SUMMED_COLUMNS if device_type(rows_RV.device) == "cpu" else rows_RV.shape[1]
    return torch.cat([block.sum(0, dtype=dtype) for block in rows_RV.split(columns, 1)])


def scaled(
    grads: Iterable[Tensor | None], by: Tensor, dtypes: Sequence[torch.dtype]
) -> tuple[Tensor | None, ...]:
    """Return the forward pass's gradients times that of the loss, each in a dtype.

    Args:
        grads: tensors, or None for one that is not wanted.
        by: the gradient of the loss, a scalar.
        dtypes: one for each gradient.
    """
    return tuple(
        None if grad is None else (grad * by).to(dtype)
        for grad, dtype in zip(grads, dtypes, strict=True)
    )


_forward = define(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor targets, Tensor? base, "
    "bool needs_x, bool needs_weight, bool needs_bias) "
    "-> (Tensor loss, Tensor grad_logits, Tensor grad_x, Tensor grad_weight, Tensor grad_bias)",
    _forward_by_chunks,
)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    x, weight, bias, _, base, *_ = inputs
    _, grad_logits, grad_x, grad_weight, grad_bias = output
    ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
    ctx.one_chunk = _is_one_chunk(x, base)
    if ctx.one_chunk:
        ctx.save_for_backward(grad_logits, x, weight)
    else:
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)


def _backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _gradients_of_one_chunk if ctx.one_chunk else _gradients_of_chunks
    return *gradients(ctx, grad_loss), None, None, None, None, None


def _gradients_of_one_chunk(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias by that of the logits, which is kept."""
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    grad_logits_PV, x_PH, weight_VH = ctx.saved_tensors
    scale = grad_loss.to(x_PH.dtype)
    grad_x = product(grad_logits_PV, weight_VH) * scale if needs_x else None
    grad_weight = product(grad_logits_PV.T, x_PH * scale) if needs_weight else None
    grad_bias = None
    if needs_bias:
        grad_bias = (column_sums(grad_logits_PV, grad_loss.dtype) * grad_loss).to(ctx.dtypes[2])
    return grad_x, grad_weight, grad_bias


def _gradients_of_chunks(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias, which the forward pass has made."""
    pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
    wanted = [grad if is_needed else None for grad, is_needed in pairs]
    return scaled(wanted, grad_loss, ctx.dtypes)


_differentiable = differentiate(_forward, _setup_context, _backward)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, base: Tensor | None = None
) -> Tensor:
    """Return the sum of the cross-entropies of x @ weight.T + bias, a float32 scalar.

    Gradients are made only for those of x, weight and bias that require them.

    Args:
        x: (P,H).
        weight: (N,H).
        bias: (K+N,), or None.
        targets: (P,) int64; those equal to IGNORED give no loss.
        base: (K,H), rows before those of weight, without a gradient; None: K is 0.
    """
    tracks = torch.is_grad_enabled()
    needs_x = tracks and x.requires_grad
    needs_weight = tracks and weight.requires_grad
    needs_bias = tracks and bias is not None and bias.requires_grad
    return _differentiable(x, weight, bias, targets, base, needs_x, needs_weight, needs_bias)


def token_losses(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    base: Tensor | None = None,
    losses: Callable[[Tensor, Tensor | None, Tensor], Sequence[Tensor]] = _losses,
) -> Tensor:
    """Return the cross-entropy of each target (P,) float32, 0 where it is IGNORED.

    There is no gradient, and never all logits are held.

    Args:
        x: as of linear_cross_entropy, like the next four.
        weight: (N,H).
        bias: (K+N,), or None.
        targets: (P,).
        base: (K,H), or None.
        losses: what gives those of a chunk first; another function where a vocabulary is split
            (ops/parallel/cross_entropy.py).
    """
    weight, base = upcast_if_emulated(weight, base)
    chunks = zip(x.split(TOKEN_ROWS), targets.split(TOKEN_ROWS), strict=True)
    return torch.cat(
        [losses(scores(x_RH, weight, base), bias, targets_R)[0] for x_RH, targets_R in chunks]
    )


class _LinearDivergence(torch.autograd.Function):
    """`linear_divergence`, whose gradients are made in the forward pass, by chunks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, teacher: Tensor, weight: Tensor, base: Tensor) -> Tensor:
        loss = x.new_zeros((), dtype=torch.float32)
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        ctx.dtypes = x.dtype, weight.dtype
        weight, base = upcast_if_emulated(weight, base)
        chunks = [rows.split(TOKEN_ROWS) for rows in (x, teacher, grad_x)]
        for x_RH, teacher_RH, grad_x_RH in zip(*chunks, strict=True):
            log_p_RK = product(teacher_RH, base.T).float().log_softmax(-1)
            log_q_RV = scores(x_RH, weight, base).float().log_softmax(-1)
            p_RK = log_p_RK.exp()
            loss += (p_RK * log_p_RK.sub_(log_q_RV[:, : len(base)])).sum()
            grad_RV = log_q_RV.exp_()
            grad_RV[:, : len(base)] -= p_RK
            add_chunk_gradients(
                grad_RV.to(x.dtype),
                x_RH,
                weight,
                base,
                grad_x_RH=grad_x_RH,
                grad_weight_NH=grad_weight,
                grad_bias_V=None,
            )
        ctx.save_for_backward(grad_x, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_weight = scaled(ctx.saved_tensors, grad_loss, ctx.dtypes)
        return grad_x, None, grad_weight, None


def linear_divergence(x: Tensor, teacher: Tensor, weight: Tensor, base: Tensor) -> Tensor:
    """Return the sum of the KL divergences of a student's predictions from a teacher's.

    The teacher predicts over the rows of base, the student over those of base and weight.

    Args:
        x: (P,H), the student's; it has a gradient.
        teacher: (P,H).
        weight: (N,H), the rows that train.
        base: (K,H), the rows before them.

    Returns:
        A float32 scalar.
    """
    return _LinearDivergence.apply(x, teacher, weight, base)
