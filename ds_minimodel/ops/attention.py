"""Attention, by the fastest way that the device has.

Shape legend: B batch, N heads, Q queries, K keys, D head width.
"""
import torch
import torch.nn.functional as F

from .softmax import masked_softmax


def attention(q, k, v, lengths, p=0.0, row_keys=None):
    """softmax(q k^T / sqrt(D)) v over the keys before each sample's length.

    q: (B,N,Q,D). k, v: (B,N,K,D). lengths: (B,) int32, or None when every key is real.
    p, row_keys: dropout of the probabilities, keys (B,N,Q) int32. Returns (B,N,Q,D).

    On the CPU explicit products beat the fused attention of torch, which runs in float32 speed
    there. On CUDA torch's flash (no mask) or memory-efficient kernel serves, but for dropout, whose
    bits those kernels cannot take from us.
    """
    if q.device.type == "cuda" and (p == 0 or row_keys is None):
        mask = None
        if lengths is not None:
            mask = (torch.arange(k.shape[-2], device=k.device) < lengths[:, None])[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores_BNQK = q @ k.transpose(-1, -2)
    return masked_softmax(scores_BNQK, lengths, q.shape[-1] ** -0.5, p, row_keys) @ v
