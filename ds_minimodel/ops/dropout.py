"""Dropout whose bits are a function of sample, site and position, never of history.

A counter-based hash (lowbias32) replaces the random generator: element j of a row is kept if and
only if hash32(row_key + (j + 1) * GOLDEN) >= floor(p * 2^32), unsigned. So the same sample drops
the same elements on any rank, in any split of the batch and after any resume, and the backward pass
recomputes the mask where others store it. The sites (which dropout of the network) are numbered in
common/random.py, which has the same hash for numpy.

uint32 arithmetic is done in int32, which wraps the same way; the shifts are made logical by masks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ds_minimodel.common.random import GOLDEN, HASH_MULTIPLIERS
from ds_minimodel.ops.library import define, differentiate

SIGN_BIT = -(2**31)


def as_int32(value: int) -> int:
    """Return the int32 with the bits of `value` modulo 2^32."""
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = map(as_int32, HASH_MULTIPLIERS)


def hash32(x: Tensor) -> Tensor:
    """Return lowbias32 (Wellons) of each element of an int32 tensor, as int32."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x *= _FIRST_MULTIPLIER
    x ^= (x >> 15) & 0x1FFFF
    x *= _SECOND_MULTIPLIER
    x ^= (x >> 16) & 0xFFFF
    return x


def row_keys(sample_keys: Tensor, site: int | range, positions: Tensor) -> Tensor:
    """Return the keys of the rows that one dropout works on.

    Args:
        sample_keys: (B,) int32.
        site: the number of the dropout in the network (common/random.py), or a range of N of them,
            one for each attention head.
        positions: (S,) or (B,S) integers, those of the rows in their sample.

    Returns:
        (B,S) int32, or (B,N,S) for a range.
    """
    positions = positions.to(torch.int32)
    if isinstance(site, range):
        # Made on the device: a copy from the host would make it wait, in every layer and pass.
        sites_N = torch.arange(
            site.start, site.stop, site.step, dtype=torch.int32, device=sample_keys.device
        )
        steps_N = sites_N * as_int32(GOLDEN)
        keys_BN = hash32(sample_keys[:, None] + steps_N)
        return hash32(keys_BN[:, :, None] + positions.unsqueeze(-2))
    keys_B = hash32(sample_keys + as_int32(site * GOLDEN))
    return hash32(keys_B[:, None] + positions)


def keep_mask(row_keys: Tensor, width: int, p: float) -> Tensor:
    """Return which elements survive dropout: bool, of the shape (*row_keys.shape, width)."""
    steps = torch.arange(1, width + 1, dtype=torch.int32, device=row_keys.device) * as_int32(GOLDEN)
    bits = hash32(row_keys[..., None] + steps)
    # With the sign bit flipped, the signed comparison orders as the unsigned one.
    threshold = as_int32(int(p * 2**32)) ^ SIGN_BIT
    return (bits ^ SIGN_BIT) >= threshold


def dropout_reference(x: Tensor, p: float, row_keys: Tensor | None) -> Tensor:
    """Compute `dropout` in torch, without a gradient; the others are scaled by 1 / (1 - p)."""
    if row_keys is None or p == 0:
        return x
    is_kept = keep_mask(row_keys, x.shape[-1], p)
    return torch.where(is_kept, x * (1 / (1 - p)), 0)


def _reference(x: Tensor, p: float, row_keys: Tensor | None) -> Tensor:
    return dropout_reference(x, p, row_keys).contiguous()


_dropout = define("dropout(Tensor x, float p, Tensor row_keys) -> Tensor", _reference)


def _setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
    _, ctx.p, row_keys = inputs
    ctx.save_for_backward(row_keys)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    # Dropout is linear: its gradient is dropout with the same bits.
    return _dropout(grad, ctx.p, *ctx.saved_tensors), None, None


_differentiable = differentiate(_dropout, _setup_context, _backward)


def dropout(x: Tensor, p: float, row_keys: Tensor | None) -> Tensor:
    """Zero elements of `x` by the bits of their rows, and scale the others by 1 / (1 - p).

    Args:
        x: (..., H).
        p: the share of elements that is dropped; 0: `x` is returned.
        row_keys: (...) int32; None: `x` is returned.
    """
    if row_keys is None or p == 0:
        return x
    return _differentiable(x, p, row_keys)
