"""Scaled dot-product attention, by the fastest implementation that the device has.

Shape legend: B batch, N heads, Q queries, S keys, D head width, C parts side by side (queries,
keys, values).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ds_minimodel.ops.library import accumulation_dtype, define, differentiate
from ds_minimodel.ops.loading import backend, device_type
from ds_minimodel.ops.matmul import product

# torch's kernels that take a mask; flash does so on CPUs alone.
WITH_MASK = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _split(
    packed: Tensor, num_parts: int, num_heads: int, contiguous: bool = False
) -> tuple[Tensor, ...]:
    """Split (B,S,C*N*D) into C tensors (B,N,S,D), which are views or contiguous."""
    parts_CBNSD = packed.unflatten(-1, (num_parts, num_heads, -1)).permute(2, 0, 3, 1, 4)
    if contiguous:
        parts_CBNSD = parts_CBNSD.contiguous()
    return parts_CBNSD.unbind(0)


def _concatenate(parts_BNSD: Sequence[Tensor]) -> Tensor:
    """Undo `_split`."""
    batch, num_heads, length, width = parts_BNSD[0].shape
    packed_BSCND = parts_BNSD[0].new_empty(batch, length, len(parts_BNSD), num_heads, width)
    for index, part_BNSD in enumerate(parts_BNSD):
        packed_BSCND[:, :, index] = part_BNSD.transpose(1, 2)
    return packed_BSCND.flatten(2)


class _SplitHeads(torch.autograd.Function):
    """`_split` with a gradient that is written in place.

    Autograd would copy the gradient of each part and then concatenate them.
    """

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, num_parts: int, num_heads: int, contiguous: bool
    ) -> tuple[Tensor, ...]:
        return _split(packed, num_parts, num_heads, contiguous)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _concatenate(grads), None, None, None


def _parts(projected, queries, num_heads, split=_split, contiguous=False):
    """Return queries (B,N,Q,D), keys and values (B,N,S,D)."""
    if queries is None:
        return split(projected, 3, num_heads, contiguous)
    (q,) = split(queries, 1, num_heads, contiguous)
    k, v = split(projected, 2, num_heads, contiguous)
    return q, k, v


def _probs(
    q: Tensor, k: Tensor, lengths: Tensor | None, p: float, row_keys: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return probabilities (B,N,Q,S) before and after dropout, in the dtype of sums."""
    dtype = accumulation_dtype(q.dtype)
    scores = q.to(dtype) @ k.to(dtype).mT
    dropped, probs = torch.ops.dsmm_reference.masked_softmax(
        scores, lengths, q.shape[-1] ** -0.5, p, row_keys
    )
    return (dropped if row_keys is None else probs), dropped


def _forward_reference(projected, queries, num_heads, lengths, p, row_keys):
    q, k, v = _parts(projected, queries, num_heads)
    _, dropped = _probs(q, k, lengths, p, row_keys)
    context_BNQD = (dropped @ v.to(dropped.dtype)).to(v.dtype)
    return context_BNQD.transpose(1, 2).flatten(2)


def _backward_reference(grad, projected, queries, num_heads, lengths, p, row_keys):
    q, k, v = _parts(projected, queries, num_heads)
    probs, dropped = _probs(q, k, lengths, p, row_keys)
    grad_BNQD = _split(grad, 1, num_heads)[0].to(probs.dtype)
    grad_probs = grad_BNQD @ v.to(probs.dtype).mT
    scale = q.shape[-1] ** -0.5
    grad_scores = torch.ops.dsmm_reference.masked_softmax_backward(
        grad_probs, probs, lengths, scale, p, row_keys
    )
    grad_q = (grad_scores @ k.to(probs.dtype)).to(q.dtype)
    grad_k = (grad_scores.mT @ q.to(probs.dtype)).to(q.dtype)
    grad_v = (dropped.mT @ grad_BNQD).to(q.dtype)
    if queries is None:
        return _concatenate([grad_q, grad_k, grad_v]), projected.new_empty(0)
    return _concatenate([grad_k, grad_v]), _concatenate([grad_q])


_ARGUMENTS = (
    "Tensor projected, Tensor? queries, int num_heads, Tensor? lengths, float p, Tensor? row_keys"
)
_forward = define(f"attention({_ARGUMENTS}) -> Tensor", _forward_reference)
_backward_op = define(
    f"attention_backward(Tensor grad, {_ARGUMENTS}) -> (Tensor grad_projected, Tensor "
    "grad_queries)",
    _backward_reference,
)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    projected, queries, ctx.num_heads, lengths, ctx.p, row_keys = inputs
    ctx.save_for_backward(projected, queries, lengths, row_keys)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    projected, queries, lengths, row_keys = ctx.saved_tensors
    grad_projected, grad_queries = _backward_op(
        grad, projected, queries, ctx.num_heads, lengths, ctx.p, row_keys
    )
    if queries is None:
        grad_queries = None
    return grad_projected, grad_queries, None, None, None, None


fused_attention = differentiate(_forward, _setup_context, _backward)


class _UnfusedAttention(torch.autograd.Function):
    """Two products around masked_softmax, of q (B,N,Q,D), k and v (B,N,S,D).

    Of the tensors (B,N,Q,S) only the probabilities before dropout are kept: the backward pass
    drops the same ones again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Tensor | None,
        p: float,
        row_keys: Tensor | None,
    ) -> Tensor:
        ctx.p = p
        scale = q.shape[-1] ** -0.5
        if q.dtype == torch.float16:
            # A product may leave the range of fp16 before it is scaled: scale its factor.
            scores = product(q * scale, k.mT)
            scale = 1.0
        else:
            scores = product(q, k.mT)
        dropped, probs = torch.ops.dsmm.masked_softmax(scores, lengths, scale, p, row_keys)
        ctx.save_for_backward(q, k, v, dropped if row_keys is None else probs, lengths, row_keys)
        return product(dropped, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probs, lengths, row_keys = ctx.saved_tensors
        dropped = probs if row_keys is None else torch.ops.dsmm.dropout(probs, ctx.p, row_keys)
        grad_v = product(dropped.mT, grad)
        del dropped
        scale = q.shape[-1] ** -0.5
        grad_scores = torch.ops.dsmm.masked_softmax_backward(
            product(grad, v.mT), probs, lengths, scale, ctx.p, row_keys
        )
        return product(grad_scores, k), product(grad_scores.mT, q), grad_v, None, None, None


def unfused_attention(
    projected: Tensor,
    queries: Tensor | None,
    num_heads: int,
    lengths: Tensor | None,
    p: float,
    row_keys: Tensor | None,
) -> Tensor:
    """Compute `attention` by two products around masked_softmax; arguments as of `attention`."""
    q, k, v = _parts(projected, queries, num_heads, _SplitHeads.apply, contiguous=True)
    context_BNQD = _UnfusedAttention.apply(q, k, v, lengths, p, row_keys)
    return context_BNQD.transpose(1, 2).flatten(2)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None
) -> Tensor:
    """Compute torch's attention to the keys that a mask lets be seen -> (B,N,Q,D).

    Not by cuDNN's kernel, the first that torch 2.11 takes on an H100: with a mask its gradients are
    nan at some lengths where all scores of a query are far below zero (pytorch#196678), and differ
    from run to run.

    Args:
        q: (B,N,Q,D).
        k: (B,N,S,D).
        v: (B,N,S,D).
        seen: bool, broadcast to (B,N,Q,S); at least one key for each query.
        scale: of the scores; None: 1/sqrt(D).
    """
    with sdpa_kernel(WITH_MASK):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


def torch_attention(
    projected: Tensor, queries: Tensor | None, num_heads: int, lengths: Tensor | None
) -> Tensor:
    """Compute `attention` without dropout by torch's fused kernels, which keep no probabilities.

    Arguments are as of `attention`.
    """
    q, k, v = _parts(projected, queries, num_heads, _SplitHeads.apply)
    if lengths is None:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    # A sample without keys attends to nothing, but torch's kernels may give nan there: it gets a
    # key, and then zeros.
    positions_S = torch.arange(k.shape[-2], device=k.device)
    mask_BS = positions_S < lengths.clamp(min=1)[:, None]
    context_BNQD = masked_attention(q, k, v, mask_BS[:, None, None])
    context_BNQD = context_BNQD.masked_fill((lengths <= 0)[:, None, None, None], 0)
    return context_BNQD.transpose(1, 2).flatten(2)


def attention(
    projected: Tensor,
    num_heads: int,
    lengths: Tensor | None,
    p: float = 0.0,
    row_keys: Tensor | None = None,
    queries: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(D)) v over the keys before each sample's length.

    Compiled kernels on the CPU, and torch's on GPUs, keep no tensor (B,N,Q,S): the backward pass
    computes the probabilities again. Torch's cannot take the bits of our dropout: with it two
    products around masked_softmax serve on GPUs.

    Args:
        projected: (B,S,3*N*D), queries, keys and values side by side; with `queries` (B,S,2*N*D),
            keys and values.
        num_heads: N.
        lengths: (B,) int32; None: every key is real.
        p: the rate of dropout of the probabilities.
        row_keys: (B,N,Q) int32, the row keys of that dropout; None: no dropout.
        queries: (B,Q,N*D), where they are not in `projected`.

    Returns:
        (B,Q,N*D).
    """
    if p == 0:
        row_keys = None
    if device_type(projected.device) == "cuda":
        if row_keys is not None:
            return unfused_attention(projected, queries, num_heads, lengths, p, row_keys)
        if not projected.is_meta:
            return torch_attention(projected, queries, num_heads, lengths)
        # Of tensors without memory our operator keeps what torch's kernels keep on a GPU.
        return fused_attention(projected, queries, num_heads, lengths, p, row_keys)
    if backend("attention", "cpu", projected.dtype).startswith("compiled"):
        return fused_attention(projected, queries, num_heads, lengths, p, row_keys)
    return unfused_attention(projected, queries, num_heads, lengths, p, row_keys)
