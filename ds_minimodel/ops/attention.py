"""Attention, by the fastest way that the device has.

Shape legend: B batch, N heads, Q queries, S keys, D head width, C parts side by side (queries, keys, values).
"""
import torch
import torch.nn.functional as F

from .product import matmul
from .softmax import masked_softmax


class _SplitHeads(torch.autograd.Function):
    """(B,S,C*N*D) -> C tensors (B,N,S,D). Backward, each gradient is written to its place: autograd would join
    copies of them by one more copy."""

    @staticmethod
    def forward(ctx, packed, num_parts, num_heads, contiguous):
        ctx.shape = *packed.shape[:2], num_parts, num_heads, packed.shape[-1] // (num_parts * num_heads)
        parts_CBNSD = packed.reshape(ctx.shape).permute(2, 0, 3, 1, 4)
        return (parts_CBNSD.contiguous() if contiguous else parts_CBNSD).unbind(0)

    @staticmethod
    def backward(ctx, *grads):
        grad_BSCND = grads[0].new_empty(ctx.shape)
        for part, grad_BNSD in enumerate(grads):
            grad_BSCND[:, :, part] = grad_BNSD.transpose(1, 2)
        return grad_BSCND.flatten(2), None, None, None


def attention(projected, num_heads, lengths, p=0.0, row_keys=None, queries=None):
    """softmax(q k^T / sqrt(D)) v over the keys before each sample's length -> (B,Q,N*D).

    projected: (B,S,3*N*D), queries, keys and values side by side; or, with `queries` (B,Q,N*D), the other two.
    lengths: (B,) int32, or None when every key is real.
    p, row_keys: dropout of the probabilities, keys (B,N,Q) int32.

    On the CPU explicit products beat the fused attention of torch, which runs in float32 speed
    there. On CUDA torch's flash (no mask) or memory-efficient kernel serves, but for dropout, whose
    bits those kernels cannot take from us.
    """
    is_fused = projected.device.type == "cuda" and (p == 0 or row_keys is None)
    if queries is None:
        q, k, v = _SplitHeads.apply(projected, 3, num_heads, not is_fused)
    else:
        (q,) = _SplitHeads.apply(queries, 1, num_heads, not is_fused)
        k, v = _SplitHeads.apply(projected, 2, num_heads, not is_fused)
    if is_fused:
        mask = None
        if lengths is not None:
            mask = (torch.arange(k.shape[-2], device=k.device) < lengths[:, None])[:, None, None, :]
        context_BNQD = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    else:
        probs_BNQS = masked_softmax(matmul(q, k.mT), lengths, q.shape[-1] ** -0.5, p, row_keys)
        context_BNQD = matmul(probs_BNQS, v)
    return context_BNQD.transpose(1, 2).flatten(2)
