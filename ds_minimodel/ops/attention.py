"""Scaled dot-product attention, by the fastest implementation that the device has.

Shape legend: B batch, N heads, Q queries, S keys, D head width, C parts side by side (queries, keys, values).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .library import accumulation_dtype, define, differentiate
from .loading import backend, why_not_triton
from .product import product


def _split(packed: Tensor, num_parts: int, num_heads: int, contiguous: bool = False) -> tuple[Tensor, ...]:
    """(B,S,C*N*D) -> C tensors (B,N,S,D), views or contiguous."""
    parts_CBNSD = packed.unflatten(-1, (num_parts, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return (parts_CBNSD.contiguous() if contiguous else parts_CBNSD).unbind(0)


def _concatenate(parts_BNSD: Sequence[Tensor]) -> Tensor:
    """The inverse of _split."""
    batch, num_heads, length, width = parts_BNSD[0].shape
    packed_BSCND = parts_BNSD[0].new_empty(batch, length, len(parts_BNSD), num_heads, width)
    for index, part_BNSD in enumerate(parts_BNSD):
        packed_BSCND[:, :, index] = part_BNSD.transpose(1, 2)
    return packed_BSCND.flatten(2)


class _SplitHeads(torch.autograd.Function):
    """`_split` with a gradient that is written in place: autograd would copy each part and then concatenate them."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, num_parts: int, num_heads: int, contiguous: bool) -> tuple[Tensor, ...]:
        return _split(packed, num_parts, num_heads, contiguous)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _concatenate(grads), None, None, None


def _parts(projected, queries, num_heads, split=_split, contiguous=False):
    """Queries, keys and values, (B,N,Q,D) and twice (B,N,S,D)."""
    if queries is None:
        return split(projected, 3, num_heads, contiguous)
    return *split(queries, 1, num_heads, contiguous), *split(projected, 2, num_heads, contiguous)


def _probs(q: Tensor, k: Tensor, lengths: Tensor | None, p: float, row_keys: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities (B,N,Q,S) before and after dropout, in the dtype of sums."""
    dtype = accumulation_dtype(q.dtype)
    scores = q.to(dtype) @ k.to(dtype).mT
    dropped, probs = torch.ops.dsmm_reference.masked_softmax(scores, lengths, q.shape[-1] ** -0.5, p, row_keys)
    return (dropped if row_keys is None else probs), dropped


def _forward_reference(projected, queries, num_heads, lengths, p, row_keys):
    q, k, v = _parts(projected, queries, num_heads)
    _, dropped = _probs(q, k, lengths, p, row_keys)
    return (dropped @ v.to(dropped.dtype)).to(v.dtype).transpose(1, 2).flatten(2)


def _forward_fake(projected: Tensor, queries: Tensor | None, *others: Any) -> Tensor:
    model = projected if queries is None else queries
    return model.new_empty(*model.shape[:2], model.shape[2] // (3 if queries is None else 1))


def _backward_reference(grad, projected, queries, num_heads, lengths, p, row_keys):
    q, k, v = _parts(projected, queries, num_heads)
    probs, dropped = _probs(q, k, lengths, p, row_keys)
    (grad_BNQD,) = (part.to(probs.dtype) for part in _split(grad, 1, num_heads))
    grad_probs = grad_BNQD @ v.to(probs.dtype).mT
    grad_scores = torch.ops.dsmm_reference.masked_softmax_backward(
        grad_probs, probs, lengths, q.shape[-1] ** -0.5, p, row_keys
    )
    grad_q, grad_k = grad_scores @ k.to(probs.dtype), grad_scores.mT @ q.to(probs.dtype)
    grads = [part.to(q.dtype) for part in (grad_q, grad_k, dropped.mT @ grad_BNQD)]
    if queries is None:
        return _concatenate(grads), projected.new_empty(0)
    return _concatenate(grads[1:]), _concatenate(grads[:1])


def _backward_fake(grad: Tensor, projected: Tensor, queries: Tensor | None, *others: Any) -> tuple[Tensor, Tensor]:
    return projected.new_empty(projected.shape), projected.new_empty(0 if queries is None else queries.shape)


_ARGUMENTS = "Tensor projected, Tensor? queries, int num_heads, Tensor? lengths, float p, Tensor? row_keys"
_GRADS = "(Tensor grad_projected, Tensor grad_queries)"
_forward = define(f"attention({_ARGUMENTS}) -> Tensor", _forward_reference, _forward_fake)
_backward_op = define(f"attention_backward(Tensor grad, {_ARGUMENTS}) -> {_GRADS}", _backward_reference, _backward_fake)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    projected, queries, ctx.num_heads, lengths, ctx.p, row_keys = inputs
    saved = output if isinstance(output, tuple) else ()  # with the sums of flash attention
    ctx.save_for_backward(*saved, projected, queries, lengths, row_keys)


def _backward(op: Any, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *saved, projected, queries, lengths, row_keys = ctx.saved_tensors
    grads = op(grad, *saved, projected, queries, ctx.num_heads, lengths, ctx.p, row_keys)
    return grads[0], None if queries is None else grads[1], None, None, None, None


compiled_attention = differentiate(_forward, _setup_context, partial(_backward, _backward_op))


def _flash_forward_reference(projected, queries, num_heads, lengths, p, row_keys):
    q, k, _ = _parts(projected, queries, num_heads)
    dtype = accumulation_dtype(q.dtype)
    scores = q.to(dtype) @ k.to(dtype).mT * q.shape[-1] ** -0.5
    if lengths is not None:
        masked_BS = torch.arange(k.shape[-2], device=k.device) >= lengths[:, None]
        scores = scores.masked_fill(masked_BS[:, None, None, :], -torch.inf)
    logsumexp = scores.logsumexp(-1)
    context = _forward_reference(projected, queries, num_heads, lengths, p, row_keys)
    return context, logsumexp.masked_fill(logsumexp == -torch.inf, 0)  # of a sample without keys


def _flash_forward_fake(projected, queries, num_heads, *others):
    context, dtype = _forward_fake(projected, queries), accumulation_dtype(projected.dtype)
    return context, context.new_empty(len(context), num_heads, context.shape[1], dtype=dtype)


# As attention, and the logarithm (B,N,Q) of each row's sum of exponentials, with which the backward pass computes the
# probabilities again.
_flash_forward = define(
    f"flash_attention({_ARGUMENTS}) -> (Tensor out, Tensor logsumexp)", _flash_forward_reference, _flash_forward_fake
)
_flash_backward_op = define(
    f"flash_attention_backward(Tensor grad, Tensor out, Tensor logsumexp, {_ARGUMENTS}) -> {_GRADS}",
    lambda grad, out, logsumexp, *inputs: _backward_reference(grad, *inputs),
    lambda grad, out, logsumexp, *inputs: _backward_fake(grad, *inputs),
)


def serve_by_triton(op: str, function: str, num_own: int, arranged: Callable = lambda *inputs: inputs) -> None:
    """Serve an operator on CUDA by a function of attention_triton.py, or by its reference where Triton cannot.

    num_own: arguments before the inputs of attention. arranged: inputs as the function takes them.
    """

    def serve(*arguments: Any) -> Any:
        own, inputs = arguments[:num_own], arguments[num_own:]
        projected, queries, num_heads = inputs[:3]
        if why_not_triton(projected.device, projected.dtype, _head_width(projected, queries, num_heads)):
            return getattr(torch.ops.dsmm_reference, op)(*arguments)
        from . import attention_triton  # needs Triton, which machines without a GPU may lack

        with torch.cuda.device(projected.device):
            return getattr(attention_triton, function)(*own, *arranged(*inputs))

    torch.library.impl(f"dsmm::{op}", "CUDA", serve)


serve_by_triton("flash_attention", "forward", 0)
serve_by_triton("flash_attention_backward", "backward", 3)


flash_attention = differentiate(_flash_forward, _setup_context, partial(_backward, _flash_backward_op))


class _AroundSoftmax(torch.autograd.Function):
    """Two products around masked_softmax, of q (B,N,Q,D), k and v (B,N,S,D).

    Of what has a number for each query and key only the probabilities before dropout are kept; the backward pass drops
    the same ones again.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, p: float, row_keys: Tensor | None
    ) -> Tensor:
        ctx.p, scale = p, q.shape[-1] ** -0.5
        dropped, probs = torch.ops.dsmm.masked_softmax(product(q, k.mT), lengths, scale, p, row_keys)
        ctx.save_for_backward(q, k, v, dropped if row_keys is None else probs, lengths, row_keys)
        return product(dropped, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probs, lengths, row_keys = ctx.saved_tensors
        dropped = probs if row_keys is None else torch.ops.dsmm.dropout(probs, ctx.p, row_keys)
        grad_v = product(dropped.mT, grad)
        del dropped
        grad_scores = torch.ops.dsmm.masked_softmax_backward(
            product(grad, v.mT), probs, lengths, q.shape[-1] ** -0.5, ctx.p, row_keys
        )
        return product(grad_scores, k), product(grad_scores.mT, q), grad_v, None, None, None


def around_softmax(
    projected: Tensor, queries: Tensor | None, num_heads: int, lengths: Tensor | None, p: float, row_keys: Tensor | None
) -> Tensor:
    parts = _parts(projected, queries, num_heads, _SplitHeads.apply, contiguous=True)
    return _AroundSoftmax.apply(*parts, lengths, p, row_keys).transpose(1, 2).flatten(2)


def _torch_fused_attention(projected: Tensor, queries: Tensor | None, num_heads: int, lengths: Tensor | None) -> Tensor:
    q, k, v = _parts(projected, queries, num_heads, _SplitHeads.apply)
    if lengths is None:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    # A sample without keys attends to nothing, but torch's kernels may give nan there: it gets a key, and then zeros.
    mask_BS = torch.arange(k.shape[-2], device=k.device) < lengths.clamp(min=1)[:, None]
    context_BNQD = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BS[:, None, None, :])
    context_BNQD = context_BNQD.masked_fill((lengths <= 0)[:, None, None, None], 0)
    return context_BNQD.transpose(1, 2).flatten(2)


def _head_width(projected: Tensor, queries: Tensor | None, num_heads: int) -> int:
    return projected.shape[-1] // (3 * num_heads) if queries is None else queries.shape[-1] // num_heads


def attention(
    projected: Tensor,
    num_heads: int,
    lengths: Tensor | None,
    p: float = 0.0,
    row_keys: Tensor | None = None,
    queries: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys before each sample's length -> (B,Q,N*D).

    projected: (B,S,3*N*D), queries, keys and values side by side; or, with `queries` (B,Q,N*D), the other two.
    lengths: (B,) int32, or None when every key is real.
    p, row_keys: dropout of the probabilities, its row keys (B,N,Q) int32.

    Compiled kernels on the CPU and Triton's on GPUs keep nothing that has a number for each pair of query and key: the
    backward pass computes the probabilities again. On GPUs torch's flash kernel serves where there is no dropout, whose
    bits it cannot take from us, and no padding; where Triton cannot serve (loading.py says when), torch's
    memory-efficient kernel serves padding, and two products around masked_softmax dropout.
    """
    if p == 0:
        row_keys = None
    if backend("attention", projected.device, projected.dtype).startswith("compiled"):
        return compiled_attention(projected, queries, num_heads, lengths, p, row_keys)
    if row_keys is not None or lengths is not None:
        width = _head_width(projected, queries, num_heads)
        if not why_not_triton(projected.device, projected.dtype, width):
            return flash_attention(projected, queries, num_heads, lengths, p, row_keys)
    if projected.is_cuda and row_keys is None:
        return _torch_fused_attention(projected, queries, num_heads, lengths)
    return around_softmax(projected, queries, num_heads, lengths, p, row_keys)
