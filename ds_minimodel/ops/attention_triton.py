"""Attention in Triton, for GPUs with tensor cores that it has code for (sm_80 and newer).

A program works on a block of queries or of keys of one head, and goes over those of the other kind, a block at a
time. Scores and probabilities exist for a pair of blocks; kept for the backward pass are the output and the logarithm
of each row's sum of exponentials. The dropout's bits are those of dropout.py. The backward pass has one kernel for the
gradient of the queries and one for those of keys and values, each of which computes the probabilities again: no atomic
sums, so the same bits in every run. Block sizes are fixed for the same reason, where tuning would choose by timing.

Shape legend: Q queries and K keys of a block, D elements of a head, padded to a power of two.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ds_minimodel.common import random

from .dropout import as_int32

GOLDEN = tl.constexpr(random.GOLDEN)
FIRST_MULTIPLIER, SECOND_MULTIPLIER = map(tl.constexpr, random.HASH_MULTIPLIERS)
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2))
IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Blocks(NamedTuple):
    """How a kernel divides its work: queries and keys at a time, warps of a program, blocks loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


# For heads up to 64 wide, and up to 128.
BLOCKS = {
    "forward": (Blocks(128, 64, 8, 3), Blocks(128, 64, 8, 2)),
    "grad_queries": (Blocks(64, 64, 4, 2), Blocks(64, 64, 8, 2)),
    "grad_keys": (Blocks(32, 64, 4, 2), Blocks(64, 64, 8, 2)),
}


# With windows, where the others spill registers.
WINDOW_BLOCKS = {("grad_queries", False): Blocks(64, 32, 4, 2), ("grad_keys", True): Blocks(32, 64, 8, 2)}


def blocks_of(kernel: str, width: int, windowed: bool = False) -> Blocks:
    """The Blocks of a kernel (of KERNELS) for heads of `width`."""
    found = BLOCKS[kernel][width > 64]
    return WINDOW_BLOCKS.get((kernel, width > 64), found) if windowed else found


def options_of(blocks: Blocks) -> dict[str, Any]:
    """Options of the compiler."""
    return {"num_warps": blocks.warps, "num_stages": blocks.stages, "enable_fp_fusion": True}


@triton.jit
def _hash32(x):
    x = x ^ (x >> 16)
    x = x * FIRST_MULTIPLIER
    x = x ^ (x >> 15)
    x = x * SECOND_MULTIPLIER
    return x ^ (x >> 16)


@triton.jit
def _kept(row_keys, columns, threshold):
    """Whether dropout keeps the elements in `columns` of the rows with these keys; the two broadcast."""
    bits = _hash32(row_keys.to(tl.uint32, bitcast=True) + (columns + 1).to(tl.uint32) * GOLDEN)
    return bits >= threshold.to(tl.uint32, bitcast=True)


@triton.jit
def _dot(a, b):
    """a @ b in fp32. Triton's interpreter has no bf16 products."""
    if IS_INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b)


@triton.jit
def _load(start, rows, num_rows, pitch, columns_D, width):
    """Rows (., D) of a matrix whose rows are `pitch` apart; zero beyond `num_rows` and `width`."""
    mask = (rows < num_rows)[:, None] & (columns_D < width)[None, :]
    return tl.load(start + rows[:, None] * pitch + columns_D[None, :], mask=mask, other=0.0)


@triton.jit
def _store(start, values, rows, num_rows, pitch, columns_D, width):
    mask = (rows < num_rows)[:, None] & (columns_D < width)[None, :]
    tl.store(start + rows[:, None] * pitch + columns_D[None, :], values.to(start.dtype.element_ty), mask=mask)


@triton.jit
def _place(num_blocks, num_heads):
    """The block of this program, the head of the batch, its sample, and its number in the sample."""
    program = tl.program_id(0)
    head = program // num_blocks
    return program % num_blocks, head, (head // num_heads).to(tl.int64), head % num_heads


@triton.jit
def _places(positions, sample, step, rows, is_row):
    """Positions of a block's queries."""
    return tl.load(positions + sample * step + rows, mask=is_row, other=0).to(tl.int32)


@triton.jit
def _keys_seen(places_Q, is_query_Q, before, after, length, BLOCK_K: tl.constexpr):
    """The keys that any query of a block sees: from the start of a block on, to the last."""
    first = tl.maximum(tl.min(tl.where(is_query_Q, places_Q, 2**30)) - before, 0)
    last = tl.max(tl.where(is_query_Q, places_Q, -1)) + after + 1
    return first // BLOCK_K * BLOCK_K, tl.minimum(last, length)


@triton.jit
def _sees(places, keys, before, after):
    """Whether queries at these places see these keys; the two broadcast."""
    return (keys >= places - before) & (keys <= places + after)


@triton.jit
def _length(lengths, sample, num_keys):
    """How many keys a sample has."""
    if lengths is None:
        return num_keys
    return tl.minimum(tl.maximum(tl.load(lengths + sample), 0), num_keys)


@triton.jit(do_not_specialize=["num_queries", "num_keys", "threshold"])
def _forward(
    queries,
    keys,
    values,
    out,
    logsumexp,
    lengths,
    row_keys,
    query_pitch,
    key_pitch,
    out_pitch,
    num_heads,
    num_queries,
    num_keys,
    scale,
    threshold,
    kept_scale,
    positions,
    positions_step,
    before,
    after,
    share,
    WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    block, head, sample, head_of_sample = _place(tl.cdiv(num_queries, BLOCK_Q), num_heads)
    length = _length(lengths, sample, num_keys)
    rows_Q, columns_D = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    offset = head_of_sample * WIDTH
    queries += sample * num_queries * query_pitch + offset
    key_offset = head_of_sample // share * WIDTH
    keys += sample * num_keys * key_pitch + key_offset
    values += sample * num_keys * key_pitch + key_offset
    out += sample * num_queries * out_pitch + offset
    rows_of_head = head.to(tl.int64) * num_queries
    is_query_Q = rows_Q < num_queries
    if row_keys is not None:
        row_keys_Q = tl.load(row_keys + rows_of_head + rows_Q, mask=is_query_Q, other=0)
    first, last = 0, length
    if positions is not None:
        places_Q = _places(positions, sample, positions_step, rows_Q, is_query_Q)
        first, last = _keys_seen(places_Q, is_query_Q, before, after, length, BLOCK_K)

    q_QD = _load(queries, rows_Q, num_queries, query_pitch, columns_D, WIDTH)
    largest_Q = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    sum_Q = tl.zeros([BLOCK_Q], tl.float32)
    context_QD = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in tl.range(first, last, BLOCK_K):
        rows_K = start + tl.arange(0, BLOCK_K)
        k_KD = _load(keys, rows_K, length, key_pitch, columns_D, WIDTH)
        v_KD = _load(values, rows_K, length, key_pitch, columns_D, WIDTH)
        scores_QK = _dot(q_QD, tl.trans(k_KD)) * (scale * LOG2_E)
        seen_QK = (rows_K < length)[None, :]
        if positions is not None:
            seen_QK = seen_QK & _sees(places_Q[:, None], rows_K[None, :], before, after)
        scores_QK = tl.where(seen_QK, scores_QK, -float("inf"))
        new_Q = tl.maximum(largest_Q, tl.max(scores_QK, 1))
        shift_Q = new_Q
        if positions is not None:  # a row may see none of these keys
            shift_Q = tl.where(new_Q == -float("inf"), 0.0, new_Q)
        exps_QK = tl.exp2(scores_QK - shift_Q[:, None])
        shrunk_Q = tl.exp2(largest_Q - shift_Q)
        sum_Q = sum_Q * shrunk_Q + tl.sum(exps_QK, 1)
        if row_keys is not None:
            exps_QK = tl.where(_kept(row_keys_Q[:, None], rows_K[None, :], threshold), exps_QK, 0.0)
        context_QD = context_QD * shrunk_Q[:, None] + _dot(exps_QK.to(v_KD.dtype), v_KD)
        largest_Q = new_Q
    # A query without keys attends to nothing.
    sum_Q = tl.where(largest_Q == -float("inf"), 1.0, sum_Q)
    _store(out, context_QD * (kept_scale / sum_Q)[:, None], rows_Q, num_queries, out_pitch, columns_D, WIDTH)
    logsumexp_Q = tl.where(largest_Q == -float("inf"), 0.0, (largest_Q + tl.log2(sum_Q)) * LN_2)
    tl.store(logsumexp + rows_of_head + rows_Q, logsumexp_Q, mask=is_query_Q)


@triton.jit(do_not_specialize=["num_queries", "num_keys", "threshold"])
def _grad_queries(
    grad_out,
    out,
    logsumexp,
    queries,
    keys,
    values,
    grad_queries,
    means,
    lengths,
    row_keys,
    query_pitch,
    key_pitch,
    out_pitch,
    num_heads,
    num_queries,
    num_keys,
    scale,
    threshold,
    kept_scale,
    positions,
    positions_step,
    before,
    after,
    share,
    WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Also writes `means`: of each row, the mean over its probabilities of their gradients."""
    block, head, sample, head_of_sample = _place(tl.cdiv(num_queries, BLOCK_Q), num_heads)
    length = _length(lengths, sample, num_keys)
    rows_Q, columns_D = block * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_D)
    offset = head_of_sample * WIDTH
    queries += sample * num_queries * query_pitch + offset
    grad_queries += sample * num_queries * query_pitch + offset
    key_offset = head_of_sample // share * WIDTH
    keys += sample * num_keys * key_pitch + key_offset
    values += sample * num_keys * key_pitch + key_offset
    out += sample * num_queries * out_pitch + offset
    grad_out += sample * num_queries * out_pitch + offset
    rows_of_head = head.to(tl.int64) * num_queries
    is_query_Q = rows_Q < num_queries
    if row_keys is not None:
        row_keys_Q = tl.load(row_keys + rows_of_head + rows_Q, mask=is_query_Q, other=0)
    first, last = 0, length
    if positions is not None:
        places_Q = _places(positions, sample, positions_step, rows_Q, is_query_Q)
        first, last = _keys_seen(places_Q, is_query_Q, before, after, length, BLOCK_K)

    grad_out_QD = _load(grad_out, rows_Q, num_queries, out_pitch, columns_D, WIDTH)
    out_QD = _load(out, rows_Q, num_queries, out_pitch, columns_D, WIDTH)
    mean_Q = tl.sum(grad_out_QD.to(tl.float32) * out_QD.to(tl.float32), 1)
    tl.store(means + rows_of_head + rows_Q, mean_Q, mask=is_query_Q)
    logsumexp_Q = tl.load(logsumexp + rows_of_head + rows_Q, mask=is_query_Q, other=0.0) * LOG2_E
    q_QD = _load(queries, rows_Q, num_queries, query_pitch, columns_D, WIDTH)
    grad_q_QD = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for start in tl.range(first, last, BLOCK_K):
        rows_K = start + tl.arange(0, BLOCK_K)
        k_KD = _load(keys, rows_K, length, key_pitch, columns_D, WIDTH)
        v_KD = _load(values, rows_K, length, key_pitch, columns_D, WIDTH)
        probs_QK = tl.exp2(_dot(q_QD, tl.trans(k_KD)) * (scale * LOG2_E) - logsumexp_Q[:, None])
        grad_QK = _dot(grad_out_QD, tl.trans(v_KD))
        if row_keys is not None:
            kept_QK = _kept(row_keys_Q[:, None], rows_K[None, :], threshold)
            grad_QK = tl.where(kept_QK, grad_QK * kept_scale, 0.0)
        seen_QK = (rows_K < length)[None, :]
        if positions is not None:
            seen_QK = seen_QK & _sees(places_Q[:, None], rows_K[None, :], before, after)
        grad_QK = tl.where(seen_QK, probs_QK * (grad_QK - mean_Q[:, None]), 0.0)
        grad_q_QD += _dot(grad_QK.to(k_KD.dtype), k_KD)
    _store(grad_queries, grad_q_QD * scale, rows_Q, num_queries, query_pitch, columns_D, WIDTH)


@triton.jit(do_not_specialize=["num_queries", "num_keys", "threshold"])
def _grad_keys(
    grad_out,
    logsumexp,
    means,
    queries,
    keys,
    values,
    grad_keys,
    grad_values,
    ranges,
    ranges_step,
    lengths,
    row_keys,
    query_pitch,
    key_pitch,
    out_pitch,
    num_heads,
    num_queries,
    num_keys,
    scale,
    threshold,
    kept_scale,
    positions,
    positions_step,
    before,
    after,
    share,
    WIDTH: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Gradients of keys and values; zero beyond a sample's length. Works on transposes, (K, Q).

    ranges: for each block of keys the first query that sees one, and the one after the last; where there are positions.
    """
    num_key_heads = num_heads // share
    block, _, sample, key_head = _place(tl.cdiv(num_keys, BLOCK_K), num_key_heads)
    length = _length(lengths, sample, num_keys)
    rows_K, columns_D = block * BLOCK_K + tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_D)
    offset = key_head * WIDTH
    keys += sample * num_keys * key_pitch + offset
    values += sample * num_keys * key_pitch + offset
    grad_keys += sample * num_keys * key_pitch + offset
    grad_values += sample * num_keys * key_pitch + offset
    first, last = 0, num_queries
    if positions is not None:
        ranges += sample * ranges_step + block * 2
        first, last = tl.load(ranges) // BLOCK_Q * BLOCK_Q, tl.load(ranges + 1)
    last = tl.where(block * BLOCK_K < length, last, 0)

    k_KD = _load(keys, rows_K, length, key_pitch, columns_D, WIDTH)
    v_KD = _load(values, rows_K, length, key_pitch, columns_D, WIDTH)
    grad_k_KD = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    grad_v_KD = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    for head_of_sample in tl.range(key_head * share, (key_head + 1) * share):
        head_queries = queries + sample * num_queries * query_pitch + head_of_sample * WIDTH
        head_grad_out = grad_out + sample * num_queries * out_pitch + head_of_sample * WIDTH
        rows_of_head = (sample * num_heads + head_of_sample) * num_queries
        for start in tl.range(first, last, BLOCK_Q):
            rows_Q = start + tl.arange(0, BLOCK_Q)
            is_query_Q = rows_Q < num_queries
            q_QD = _load(head_queries, rows_Q, num_queries, query_pitch, columns_D, WIDTH)
            grad_out_QD = _load(head_grad_out, rows_Q, num_queries, out_pitch, columns_D, WIDTH)
            # Rows beyond the queries have probabilities of 0.
            logsumexp_Q = tl.load(logsumexp + rows_of_head + rows_Q, mask=is_query_Q, other=float("inf")) * LOG2_E
            mean_Q = tl.load(means + rows_of_head + rows_Q, mask=is_query_Q, other=0.0)
            probs_KQ = tl.exp2(_dot(k_KD, tl.trans(q_QD)) * (scale * LOG2_E) - logsumexp_Q[None, :])
            if positions is not None:
                places_Q = _places(positions, sample, positions_step, rows_Q, is_query_Q)
                probs_KQ = tl.where(_sees(places_Q[None, :], rows_K[:, None], before, after), probs_KQ, 0.0)
            grad_KQ = _dot(v_KD, tl.trans(grad_out_QD))
            dropped_KQ = probs_KQ
            if row_keys is not None:
                row_keys_Q = tl.load(row_keys + rows_of_head + rows_Q, mask=is_query_Q, other=0)
                kept_KQ = _kept(row_keys_Q[None, :], rows_K[:, None], threshold)
                dropped_KQ = tl.where(kept_KQ, probs_KQ, 0.0)
                grad_KQ = tl.where(kept_KQ, grad_KQ * kept_scale, 0.0)
            grad_v_KD += _dot(dropped_KQ.to(grad_out_QD.dtype), grad_out_QD)
            grad_KQ = probs_KQ * (grad_KQ - mean_Q[None, :])
            grad_k_KD += _dot(grad_KQ.to(q_QD.dtype), q_QD)
    is_key_K = (rows_K < length)[:, None]
    grad_k_KD, grad_v_KD = tl.where(is_key_K, grad_k_KD * scale, 0.0), tl.where(is_key_K, grad_v_KD * kept_scale, 0.0)
    _store(grad_keys, grad_k_KD, rows_K, num_keys, key_pitch, columns_D, WIDTH)
    _store(grad_values, grad_v_KD, rows_K, num_keys, key_pitch, columns_D, WIDTH)


KERNELS = {"forward": _forward, "grad_queries": _grad_queries, "grad_keys": _grad_keys}


def _fitting(argument: Tensor | None, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype, name: str) -> Any:
    """The argument, contiguous; RuntimeError for one that a kernel would read wrongly."""
    if argument is None:
        return None
    if argument.shape != shape or argument.dtype != dtype or argument.device != like.device:
        raise RuntimeError(f"{name} must be of shape {shape}, {dtype} and on {like.device}")
    return argument.contiguous()


class Window(NamedTuple):
    """The keys that queries see: `before` and `after` their positions, (Q,) or (B,Q) int64."""

    positions: Tensor
    before: int
    after: int
    scale: float  # of the scores

    def ranges(self, num_keys: int, block: int) -> Tensor:
        """The queries that see a key of each block, (…,blocks,2) int32: the first, and the one after the last."""
        starts = torch.arange(0, num_keys, block, dtype=torch.int32, device=self.positions.device)
        places = self.positions.to(torch.int32)[..., None]
        meets = (places >= starts - self.after) & (places < starts + block + self.before)
        rows = torch.arange(places.shape[-2], dtype=torch.int32, device=starts.device)[:, None]
        first, last = torch.where(meets, rows, len(rows)).amin(-2), torch.where(meets, rows + 1, 0).amax(-2)
        return torch.stack((first, last), -1)


def _parts(
    projected: Tensor, queries: Tensor | None, num_heads: int, window: Window | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as views, (B,Q,N*D) and twice (B,S,K*D)."""
    projected = projected.contiguous()
    if queries is None:
        q, k, v = projected.chunk(3, -1)
        return q, k, v
    k, v = projected.chunk(2, -1)
    columns = queries.shape[-1] if window else k.shape[-1]
    if columns % num_heads or k.shape[-1] % (columns // num_heads) or columns % k.shape[-1]:
        raise RuntimeError(f"keys_values must hold heads that {num_heads} of queries can share")
    return _fitting(queries, (len(k), queries.shape[1], columns), k, k.dtype, "queries"), k, v


def _arguments(
    projected: Tensor,
    parts: tuple[Tensor, Tensor, Tensor],
    lengths: Tensor | None,
    p: float,
    row_keys: Tensor | None,
    num_heads: int,
    window: Window | None,
) -> tuple[Any, ...]:
    """What every kernel takes between its matrices and the sizes of its blocks; parts as _parts gives them."""
    q, k, _ = parts
    batch, num_queries, columns = q.shape
    width = columns // num_heads
    key_pitch = projected.shape[-1]  # not its stride, which may be any number where there is a single row
    place = None
    if window:
        shape = (num_queries,) if window.positions.dim() == 1 else (batch, num_queries)
        place = _fitting(window.positions, shape, q, torch.int64, "positions")
    return (
        _fitting(lengths, (batch,), q, torch.int32, "lengths"),
        _fitting(row_keys, (batch, num_heads, num_queries), q, torch.int32, "row_keys"),
        key_pitch if key_pitch == 3 * columns else columns,
        key_pitch,
        columns,
        num_heads,
        num_queries,
        projected.shape[1],
        window.scale if window else width**-0.5,
        as_int32(int(p * 2**32)),
        1.0 if row_keys is None else 1 / (1 - p),
        place,
        num_queries if place is not None and place.dim() == 2 else 0,
        window.before if window else 0,
        window.after if window else 0,
        columns // k.shape[-1],
        width,
    )


def _launch(
    name: str,
    matrices: tuple[Tensor | int | None, ...],
    arguments: tuple[Any, ...],
    num_rows: int,
    num_heads: int,
    windowed: bool,
) -> None:
    """Start a kernel on every block of `num_rows` queries or keys of each of the batch's heads."""
    width = arguments[-1]
    blocks = blocks_of(name, width, windowed)
    num_programs = triton.cdiv(num_rows, blocks.keys if name == "grad_keys" else blocks.queries) * num_heads
    if num_programs:
        padded = max(16, triton.next_power_of_2(width))
        KERNELS[name][(num_programs,)](*matrices, *arguments, blocks.queries, blocks.keys, padded, **options_of(blocks))


def forward(
    projected: Tensor,
    queries: Tensor | None,
    num_heads: int,
    lengths: Tensor | None,
    p: float,
    row_keys: Tensor | None,
    window: Window | None = None,
) -> tuple[Tensor, Tensor]:
    """Context (B,Q,N*D), and the logarithm of each row's sum of exponentials (B,N,Q); arguments as of attention().

    window: None where each query sees all keys; with one, `projected` is keys and values of heads that may be shared.
    """
    parts = _parts(projected, queries, num_heads, window)
    q = parts[0]
    batch, num_queries, _ = q.shape
    out = q.new_empty(q.shape)
    logsumexp = q.new_empty(batch, num_heads, num_queries, dtype=torch.float32)
    arguments = _arguments(projected, parts, lengths, p, row_keys, num_heads, window)
    _launch("forward", (*parts, out, logsumexp), arguments, num_queries, batch * num_heads, window is not None)
    return out, logsumexp


def backward(
    grad: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    projected: Tensor,
    queries: Tensor | None,
    num_heads: int,
    lengths: Tensor | None,
    p: float,
    row_keys: Tensor | None,
    window: Window | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of `projected` and of `queries` (empty where there are none); grad and out (B,Q,N*D)."""
    grad, out = grad.contiguous(), out.contiguous()
    parts = _parts(projected, queries, num_heads, window)
    q, k, _ = parts
    grad_projected = projected.new_empty(projected.shape)
    grad_others = projected.new_empty(0 if queries is None else queries.shape)
    grad_q, grad_k, grad_v = _parts(grad_projected, None if queries is None else grad_others, num_heads, window)
    means = torch.empty_like(logsumexp)
    arguments = _arguments(projected, parts, lengths, p, row_keys, num_heads, window)
    of_queries = grad, out, logsumexp, *parts, grad_q, means
    _launch("grad_queries", of_queries, arguments, q.shape[1], len(q) * num_heads, window is not None)
    ranges, step = None, 0
    if window and k.shape[1]:
        ranges = window.ranges(k.shape[1], blocks_of("grad_keys", arguments[-1], True).keys)
        step = ranges[0].numel() if ranges.dim() == 3 else 0
    of_keys = grad, logsumexp, means, *parts, grad_k, grad_v, ranges, step
    num_key_heads = num_heads * k.shape[-1] // q.shape[-1]
    _launch("grad_keys", of_keys, arguments, k.shape[1], len(q) * num_key_heads, window is not None)
    return grad_projected, grad_others
