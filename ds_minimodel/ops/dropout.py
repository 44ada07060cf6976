"""Dropout whose bits are a function of sample, operator and position, never of history.

A counter-based hash (lowbias32) replaces the random generator: element j of a row is kept if and
only if hash32(row_key + (j + 1) * GOLDEN) >= floor(p * 2^32), unsigned. So the same sample drops the
same elements on any rank, in any split of the batch and after any resume, and the backward pass
recomputes the mask where others store it. numpy has the same hash in ds_minimodel/common/random.py.

uint32 arithmetic is done in int32, which wraps the same way; the shifts are made logical by masks.
"""

import torch

from .library import define, differentiate

GOLDEN = 0x9E3779B9
SIGN_BIT = -(2**31)


def signed(value):
    """The int32 with the bits of `value` modulo 2^32."""
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def hash32(x):
    """lowbias32 (Wellons) of each element of an int32 tensor, as int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x *= signed(0x7FEB352D)
    x ^= (x >> 15) & 0x1FFFF
    x *= signed(0x846CA68B)
    x ^= (x >> 16) & 0xFFFF
    return x


def row_keys(sample_keys, op, positions):
    """Keys of the rows that one dropout works on.

    sample_keys: (B,) int32. positions: (S,) or (B,S) integers, the place of each row in its sample.
    op: the number of the dropout in the network; or a range of N of them (one for each attention
    head), which adds an axis.
    Returns (B,S) int32, or (B,N,S) for a range.
    """
    positions = positions.to(torch.int32)
    if isinstance(op, range):
        ops = torch.tensor([signed(number * GOLDEN) for number in op], dtype=torch.int32, device=sample_keys.device)
        return hash32(hash32(sample_keys[:, None] + ops)[:, :, None] + positions.unsqueeze(-2))
    return hash32(hash32(sample_keys + signed(op * GOLDEN))[:, None] + positions)


def kept(row_keys, width, p):
    """Which elements survive: bool, the shape of row_keys with `width` appended."""
    steps = torch.arange(1, width + 1, dtype=torch.int32, device=row_keys.device) * signed(GOLDEN)
    bits = hash32(row_keys[..., None] + steps)
    # With the sign bit flipped, the signed comparison orders as the unsigned one.
    return (bits ^ SIGN_BIT) >= signed(int(p * 2**32)) ^ SIGN_BIT


def drop(x, p, row_keys):
    """Zero the dropped elements of x (..., H) and scale the others by 1 / (1 - p)."""
    if row_keys is None or p == 0:
        return x
    return torch.where(kept(row_keys, x.shape[-1], p), x * (1 / (1 - p)), 0)


def _reference(x, p, row_keys):
    return drop(x, p, row_keys).contiguous()


def _fake(x, p, row_keys):
    return x.new_empty(x.shape)


_dropout = define("dropout(Tensor x, float p, Tensor row_keys) -> Tensor", _reference, _fake)


def _setup_context(ctx, inputs, output):
    _, ctx.p, row_keys = inputs
    ctx.save_for_backward(row_keys)


def _backward(ctx, grad):
    # Dropout is linear: its gradient is dropout with the same bits.
    return _dropout(grad, ctx.p, *ctx.saved_tensors), None, None


_differentiable = differentiate(_dropout, _setup_context, _backward)


def dropout(x, p, row_keys):
    """Dropout of x (..., H) with rate p; row_keys int32 of shape x.shape[:-1].

    Without keys or with p == 0 this is the identity.
    """
    if row_keys is None or p == 0:
        return x
    return _differentiable(x, p, row_keys)
