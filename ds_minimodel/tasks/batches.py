"""Encoded examples, and the batches that training and evaluation make of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ds_minimodel.common.random import permute, sample_key
from ds_minimodel.common.vocabulary import IGNORED, PAD

EVALUATION_TOKENS = 16_384  # padded tokens of one forward pass without gradients
PADDING_THAT_PAYS = 0.05  # share of a batch from which on packing saves more than its copies cost


@dataclass(frozen=True)
class Examples:
    """N token sequences laid end to end.

    tokens: (T,) int32. bounds: (N+1,) int64, sequence i is tokens[bounds[i]:bounds[i+1]].
    targets: (N, M) int64. reads_start: the head reads position 0 only (else every position).
    """

    tokens: np.ndarray
    bounds: np.ndarray
    targets: np.ndarray
    reads_start: bool

    def __len__(self):
        return len(self.targets)

    @cached_property
    def lengths(self):
        return np.diff(self.bounds)

    def batch(self, index, keys, ignored=None):
        """Batch dict of the examples `index` (B,), padded to the longest, with dropout keys (B,) uint32.

        ignored: (B,) bool, rows that give no loss. Where much is padding, "real" (T,) int64 says which of
        the B*S positions are tokens, so that the model can leave out the rest (model/packing.py).
        """
        starts, lengths = self.bounds[index], self.lengths[index]
        real = np.arange(lengths.max()) < lengths[:, None]
        tokens = np.full(real.shape, PAD, dtype=np.int64)
        tokens[real] = self.tokens[(starts[:, None] + np.arange(real.shape[1]))[real]]
        targets = self.targets[index]
        if ignored is not None:
            targets[ignored] = IGNORED
        batch = {
            "tokens": tokens,
            "lengths": lengths.astype(np.int32),
            "targets": targets,
            "sample_keys": np.asarray(keys, dtype=np.uint32).view(np.int32),
            "count": len(index) - (0 if ignored is None else int(ignored.sum())),
        }
        if real.mean() < 1 - PADDING_THAT_PAYS:
            batch["real"] = np.flatnonzero(real)
        if self.reads_start:
            batch["read"] = np.zeros((len(index), 1), dtype=np.int64)
        return batch


def join(sequences, targets, reads_start):
    """Examples of a list of N integer arrays and their targets, (N,) or (N, M)."""
    bounds = np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64)])
    targets = np.asarray(targets, dtype=np.int64).reshape(len(sequences), -1)
    return Examples(np.concatenate(sequences).astype(np.int32), bounds, targets, reads_start)


class TaskSampler:
    """Training batches as a function of (seed, sample number); nothing is remembered between calls.

    An epoch is `updates_per_epoch` = ceil(N / batch_size) updates of `slots` sample numbers each, which run
    through all epochs. Numbers beyond an update's batch, and those that fill an epoch's last batch, stand for
    no example and give no loss.
    """

    def __init__(self, examples, batch_size, seed, slots=None):
        """slots: sample numbers an update, batch_size or more where that many are easier to share."""
        self.examples = examples
        self.seed = seed
        self.batch_size, self.slots = batch_size, slots or batch_size
        self.updates_per_epoch = -(-len(examples) // batch_size)
        self._filler = int(examples.lengths.argmin())

    def rows(self, first, last):
        """Batch of the global samples `first` … `last - 1` (any piece of an update's samples)."""
        update, slot = np.divmod(np.arange(first, last), self.slots)
        epoch, update = np.divmod(update, self.updates_per_epoch)
        place = update * self.batch_size + slot
        ignored = (slot >= self.batch_size) | (place >= len(self.examples))
        index = np.full(len(place), self._filler)
        index[~ignored] = permute(place[~ignored], len(self.examples), self.seed, epoch[~ignored])
        keys = sample_key(self.seed, epoch, np.where(ignored, place, index))
        return self.examples.batch(index, keys, ignored)


def evaluation_batches(examples, max_tokens):
    """Yield (index (B,), batch): each example once, longest first, at most `max_tokens` padded tokens."""
    lengths = examples.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        index = order[start : start + max(1, max_tokens // int(lengths[order[start]]))]
        yield index, examples.batch(index, np.zeros(len(index)))
        start += len(index)
