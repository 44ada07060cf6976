"""Samples of a text: the tokens of any sample of any epoch, found from its number alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.random import permute, sample_key
from ds_minimodel.common.vocabulary import FILLER
from ds_minimodel.data.blocks import BlockTable
from ds_minimodel.data.store import TokenStore

_MULTIPLE = 8  # batches are padded to a multiple: fewer shapes, faster matrices
_AHEAD = 256  # samples whose order is drawn at once: for 4 numpy needs two thirds of the time that it needs for all

Integers = NDArray[np.int64]
Keys = NDArray[np.uint32]  # of samples (common/random.py)


class Samples(NamedTuple):
    """B samples: tokens (B, S), padded to the longest row rounded up to a multiple of 8, at most the sequence length;
    lengths (B,); keys (B,), of all that is drawn for each."""

    tokens: Integers
    lengths: Integers
    keys: Keys


class SampleReader:
    """The samples of a run, numbered from 0 on through all epochs; each epoch holds every block once.

    Order and keys are functions of (seed, epoch, block): a rank may take any slice of any step, and a resumed run goes
    on at its number of samples with nothing to restore.
    """

    def __init__(self, store: TokenStore, blocks: BlockTable, seed: int):
        self.store, self.blocks, self.seed = store, blocks, seed
        self._drawn = self._draw(0, 0)

    def read(self, first: int, last: int) -> Samples:
        """The samples [first, last)."""
        numbers, keys = self._numbers(first, last)
        return Samples(*self._read(numbers), keys)

    def _numbers(self, first: int, last: int) -> tuple[Integers, Keys]:
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
        """Tokens (B, S), each row <s> (where the vocabulary has one) and a block and padding; lengths (B,)."""
        starts, sizes = self.blocks.spans(numbers)
        bos = self.store.vocabulary.bos
        first = 0 if bos is None else 1
        lengths = sizes + first
        width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, self.blocks.seq_length)
        tokens = np.full((len(numbers), width), FILLER, np.int64)
        tokens[:, :first] = bos or 0
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            tokens[row, first : first + size] = self.store.read(start, start + size)
        return tokens, lengths
