"""Batches for masked language modelling: any sample of any epoch, computed from its number alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.random import Stream, draws, permute, sample_key, stream_key, uniform, uniform_below
from ds_minimodel.common.vocabulary import BOS, IGNORED, NUM_SPECIAL, PAD, mask_id
from ds_minimodel.data.blocks import BlockTable
from ds_minimodel.data.store import TokenStore

_MULTIPLE = 8  # batches are padded to a multiple: fewer shapes, faster matrices
_AHEAD = 256  # samples whose order is drawn at once: for 4 numpy needs two thirds of the time that it needs for all

Integers = NDArray[np.int64]
Keys = NDArray[np.uint32]  # of samples (common/random.py)


class MlmSampler:
    """The samples of a run, numbered from 0 on through all epochs; each epoch holds every block once.

    Order, masks and dropout are functions of (seed, epoch, block): a rank may take any
    slice of any step, and a resumed run goes on at its number of samples with nothing to restore.
    """

    def __init__(self, store: TokenStore, blocks: BlockTable, mask_prob: float, seed: int):
        self.store, self.blocks, self.mask_prob, self.seed = store, blocks, mask_prob, seed
        self._drawn = self._draw(0, 0)

    def rows(self, first: int, last: int) -> dict[str, Any]:
        """The batch of the samples [first, last), B = last - first.

        tokens (B, S) int64, padded to the longest row rounded up to a multiple of 8, at most seq_length;
        lengths (B,) int32; read (B, M) int64, the masked positions in order, 0 where unused;
        targets (B, M) int64, the ids there, IGNORED where unused; sample_keys (B,) int32, for dropout;
        count, the number of targets used.
        """
        numbers, sample_keys = self._samples(first, last)
        tokens, lengths = self._read(numbers)
        read, targets, used = choose_positions(tokens, lengths, sample_keys, self.mask_prob)
        rows, slots = np.nonzero(used)
        tokens[rows, read[used]] = replacements(targets, sample_keys, self.store.vocab_size)[rows, slots]
        return {
            "tokens": tokens,
            "lengths": lengths.astype(np.int32),
            "read": read,
            "targets": targets,
            "sample_keys": sample_keys.view(np.int32),
            "count": len(rows),
        }

    def _samples(self, first: int, last: int) -> tuple[Integers, Keys]:
        """Blocks and keys of the samples [first, last), (B,) each; those after them are kept for the next batch."""
        start, numbers, keys = self._drawn
        if first < start or start + len(numbers) < last:
            self._drawn = start, numbers, keys = self._draw(first, max(last, first + _AHEAD))
        return numbers[first - start : last - start], keys[first - start : last - start].copy()

    def _draw(self, first: int, last: int) -> tuple[int, Integers, Keys]:
        """`first`, and blocks and keys of the samples [first, last)."""
        epochs, places = np.divmod(np.arange(first, last), len(self.blocks))
        numbers = permute(places, len(self.blocks), self.seed, epochs)
        return first, numbers, sample_key(self.seed, epochs, numbers)

    def _read(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Tokens (B, S), each row <s> and a block and padding; lengths (B,)."""
        starts, sizes = self.blocks.spans(numbers)
        lengths = sizes + 1
        width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, self.blocks.seq_length)
        tokens = np.full((len(numbers), width), PAD, np.int64)
        tokens[:, 0] = BOS
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            tokens[row, 1 : size + 1] = self.store.read(start, start + size)
        return tokens, lengths


def choose_positions(
    tokens: Integers, lengths: Integers, sample_keys: Keys, mask_prob: float
) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """fairseq's choice of what to predict: int(mask_prob * length + U[0, 1)) positions of each row,
    without replacement; <s> and </s> may be among them.

    tokens (B, S), lengths (B,), sample_keys (B,). Returns read (B, M), targets (B, M) and used (B, M) bool,
    with M the most of any row, but at least 1.
    """
    rounding = uniform(draws(stream_key(sample_keys, Stream.MASK_COUNT), 0, 1))[:, 0]
    counts = (mask_prob * lengths + rounding).astype(np.int64)
    width = tokens.shape[1]
    positions = np.arange(width, dtype=np.uint64)
    position_draws = draws(stream_key(sample_keys, Stream.MASK_POSITIONS), 0, width)
    ranks = position_draws.astype(np.uint64) << np.uint64(32) | positions
    ranks[positions >= lengths[:, None]] = np.iinfo(np.uint64).max
    ranks.sort(axis=1)  # a row's positions in random order
    read = (ranks[:, : max(1, counts.max())] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    used = np.arange(read.shape[1]) < counts[:, None]
    read[~used] = width  # to the right end
    read.sort(axis=1)
    read[~used] = 0
    targets = np.where(used, np.take_along_axis(tokens, read, axis=1), IGNORED)
    return read, targets, used


def replacements(targets: Integers, sample_keys: Keys, vocab_size: int) -> Integers:
    """Tokens that the model sees at the positions to predict, (B, M): <mask> for 80 %, a piece drawn
    uniformly from all that are not special for 10 %, the token itself for 10 %."""
    slots = targets.shape[1]
    kind = uniform(draws(stream_key(sample_keys, Stream.MASK_KIND), 0, slots))
    mask = mask_id(vocab_size)
    piece_draws = draws(stream_key(sample_keys, Stream.MASK_PIECE), 0, slots)
    pieces = NUM_SPECIAL + uniform_below(piece_draws, mask - NUM_SPECIAL)
    return np.where(kind < 0.8, mask, np.where(kind < 0.9, pieces, targets))
