"""Linear layer and cross-entropy over a large vocabulary, with one chunk of the logits in memory at
a time.

Shape legend: P positions, H hidden, V vocabulary, R rows of one chunk.

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

# Rows of logits held at once. Fewer make the products too thin, more only cost memory; but where
# products are bf16's own, each chunk's gradient of the weight is added to one in fp32, which costs
# as much as the product of 300 rows.
CHUNK_ROWS = {"cpu": 320, "cuda": 2048}
CHUNK_ROWS_BF16 = 2048  # on CPUs with bf16 products
TOKEN_ROWS = 320  # of logits, where each target's loss is wanted
SUMMED_COLUMNS = 512  # added up at once on CPUs


def _losses(
    logits: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses (R,), scores (R, V), logarithms of the sums of exponentials (R,), whether a target
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
    device = device_type(x.device)
    if device == "cpu" and x.dtype == torch.bfloat16 and has_bf16_products() and base is None:
        return CHUNK_ROWS_BF16
    return CHUNK_ROWS.get(device, CHUNK_ROWS["cuda"])


def _is_one_chunk(x: Tensor, base: Tensor | None) -> bool:
    return base is None and x.shape[0] <= _chunk_rows(x)


def scores(
    x_RH: Tensor, weight_NH: Tensor, base_KH: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Products with the rows of `base`, if there are such, and those of `weight`, side by side (R,
    K + N).
    """
    if base_KH is None:
        return product(x_RH, weight_NH.T, out=out)
    return torch.cat((product(x_RH, base_KH.T), product(x_RH, weight_NH.T)), -1, out=out)


def _forward_by_chunks(x, weight, bias, targets, base, needs_x, needs_weight, needs_bias):
    """What the operator does on every device: products, and the compiled part of the loss, chunk by
    chunk.
    """
    needs_grad = needs_x or needs_weight or needs_bias
    dtype = accumulation_dtype(x.dtype)
    if _is_one_chunk(x, base):
        logits_PV = product(x, weight.T)
        loss = _loss_and_logit_grad_(logits_PV, bias, targets, needs_grad)
        no_gradients = (x.new_empty(0, dtype=of) for of in (x.dtype, dtype, dtype))
        return loss, logits_PV if needs_grad else x.new_empty(0), *no_gradients

    loss = x.new_zeros((), dtype=dtype)
    grad_x = torch.empty_like(x) if needs_x else x.new_empty(0)
    grad_weight = weight.new_zeros(weight.shape if needs_weight else 0, dtype=dtype)
    size = len(weight) + (0 if base is None else len(base))
    rows = _chunk_rows(x, base)
    grad_bias = weight.new_zeros(size if needs_bias else 0, dtype=dtype)
    buffer_RV = x.new_empty(min(rows, len(x)), size)
    weight, base = upcast_if_emulated(weight, base)  # once, not for every product
    for start in range(0, x.shape[0], rows):
        chunk = slice(start, start + rows)
        x_RH = x[chunk]
        logits_RV = scores(x_RH, weight, base, out=buffer_RV[: x_RH.shape[0]])
        loss += _loss_and_logit_grad_(logits_RV, bias, targets[chunk], needs_grad)
        grad_x_RH = grad_x[chunk] if needs_x else None
        wanted = grad_weight if needs_weight else None, grad_bias if needs_bias else None
        add_chunk_gradients(logits_RV, x_RH, weight, base, grad_x_RH, *wanted)
    return loss, x.new_empty(0), grad_x, grad_weight, grad_bias


def add_chunk_gradients(
    grad_logits_RV: Tensor,
    x_RH: Tensor,
    weight_NH: Tensor,
    base_KH: Tensor | None,
    grad_x_RH: Tensor | None,
    grad_weight_NH: Tensor | None,
    grad_bias_V: Tensor | None,
) -> None:
    """Write a chunk's gradient of x, and add its gradients of weight and bias. None: not wanted."""
    parts = grad_logits_RV.split([grad_logits_RV.shape[1] - len(weight_NH), len(weight_NH)], 1)
    if grad_x_RH is not None:
        product(parts[1], weight_NH, out=grad_x_RH)
        if base_KH is not None:
            add_product_(grad_x_RH, parts[0], base_KH)
    if grad_weight_NH is not None:
        add_product_(grad_weight_NH, parts[1].T, x_RH)
    if grad_bias_V is not None:
        grad_bias_V += column_sums(grad_logits_RV, grad_bias_V.dtype)


def column_sums(rows_RV: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums of the columns (V,), by blocks of them on a CPU, where torch copies what it adds up to
    `dtype` first.
    """
    columns = SUMMED_COLUMNS if device_type(rows_RV.device) == "cpu" else rows_RV.shape[1]
    return torch.cat([block.sum(0, dtype=dtype) for block in rows_RV.split(columns, 1)])


def scaled(
    grads: Iterable[Tensor | None], by: Tensor, dtypes: Sequence[torch.dtype]
) -> tuple[Tensor | None, ...]:
    """Gradients that the forward pass has made, times that of the loss, each in its own dtype.
    None: not wanted.
    """
    return tuple(
        None if grad is None else (grad * by).to(dtype)
        for grad, dtype in zip(grads, dtypes, strict=True)
    )


_forward = define(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor targets, Tensor? base, "
    "bool needs_x, "
    "bool needs_weight, bool needs_bias) "
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
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    grad_x = grad_weight = grad_bias = None
    if ctx.one_chunk:
        grad_logits_PV, x_PH, weight_VH = ctx.saved_tensors
        scale = grad_loss.to(x_PH.dtype)
        if needs_x:
            grad_x = product(grad_logits_PV, weight_VH) * scale
        if needs_weight:
            grad_weight = product(grad_logits_PV.T, x_PH * scale)
        if needs_bias:
            grad_bias = (column_sums(grad_logits_PV, grad_loss.dtype) * grad_loss).to(ctx.dtypes[2])
    else:
        own = [
            one if needs else None
            for one, needs in zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
        ]
        grad_x, grad_weight, grad_bias = scaled(own, grad_loss, ctx.dtypes)
    return grad_x, grad_weight, grad_bias, None, None, None, None, None


_differentiable = differentiate(_forward, _setup_context, _backward)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, base: Tensor | None = None
) -> Tensor:
    """Sum of cross-entropies of x @ weight.T + bias, a float32 scalar.

    x: (P,H). weight: (V,H). bias: (V,), or None. targets: (P,) int64, those equal to IGNORED give
    no loss. base: rows before those of weight, (K,H), without a gradient; bias is then (K+V,).
    Gradients are made only for those of x, weight and bias that require them.
    """
    tracks = torch.is_grad_enabled()
    needed = (tracks and t is not None and t.requires_grad for t in (x, weight, bias))
    return _differentiable(x, weight, bias, targets, base, *needed)


def token_losses(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    base: Tensor | None = None,
    losses: Callable[[Tensor, Tensor | None, Tensor], Sequence[Tensor]] = _losses,
) -> Tensor:
    """The cross-entropy of each target (P,) float32, 0 where it is IGNORED; arguments as of
    linear_cross_entropy.

    losses: of a chunk; another one where a vocabulary is split (ops/parallel/cross_entropy.py).
    Without a gradient, and never holding all logits.
    """
    weight, base = upcast_if_emulated(weight, base)
    chunks = zip(x.split(TOKEN_ROWS), targets.split(TOKEN_ROWS), strict=True)
    return torch.cat(
        [losses(scores(x_RH, weight, base), bias, targets_R)[0] for x_RH, targets_R in chunks]
    )


class _LinearDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, teacher: Tensor, weight: Tensor, base: Tensor) -> Tensor:
        loss = x.new_zeros((), dtype=torch.float32)
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        ctx.dtypes = x.dtype, weight.dtype
        weight, base = upcast_if_emulated(weight, base)
        for x_RH, teacher_RH, grad_x_RH in zip(
            *(own.split(TOKEN_ROWS) for own in (x, teacher, grad_x)), strict=True
        ):
            log_p_RK = product(teacher_RH, base.T).float().log_softmax(-1)
            log_q_RV = scores(x_RH, weight, base).float().log_softmax(-1)
            p_RK = log_p_RK.exp()
            loss += (p_RK * log_p_RK.sub_(log_q_RV[:, : len(base)])).sum()
            grad_RV = log_q_RV.exp_()
            grad_RV[:, : len(base)] -= p_RK
            add_chunk_gradients(
                grad_RV.to(x.dtype), x_RH, weight, base, grad_x_RH, grad_weight, None
            )
        ctx.save_for_backward(grad_x, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight = scaled(ctx.saved_tensors, grad_loss, ctx.dtypes)
        return of_x, None, of_weight, None


def linear_divergence(x: Tensor, teacher: Tensor, weight: Tensor, base: Tensor) -> Tensor:
    """Sum of the KL divergences of what is predicted from x, over the rows of base and weight, from
    what is predicted from `teacher` over those of base: a float32 scalar, with gradients of x and
    weight.

    x, teacher: (P,H). weight, base: as of linear_cross_entropy.
    """
    return _LinearDivergence.apply(x, teacher, weight, base)
