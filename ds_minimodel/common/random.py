"""Counter-based randomness: a draw is a hash of what it is for, so nothing else can change it.

No generator holds state. Masks, order and dropout depend on (seed, epoch, sample, position) only:
not on the rank, on how a batch is split, or on what was drawn before. All arithmetic is uint32,
here in numpy; the same hash is written for torch in ops/dropout.py and for the kernels in
csrc/*/dropout.

A sample's key is hashed with the number of what is drawn. The numbers are declared here and nowhere
else: those of a network's dropouts (DropoutSites), all below FIRST_STREAM, and those of what the
data draws (Stream), from there on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# 2^32 / golden ratio, odd: its multiples are all different modulo 2^32.
GOLDEN = 0x9E3779B9
# Of lowbias32 (Wellons, "Hash Prospector").
HASH_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
FIRST_STREAM = 0x10000

UInt32s = NDArray[np.uint32]

# What the key of `permute` is hashed with in each round of the Feistel network.
_FEISTEL_COUNTERS: UInt32s = np.array([(i * GOLDEN) % 2**32 for i in range(8)], np.uint32)


class Stream(IntEnum):
    """Numbers of the random streams that the data draws from."""

    MASK_COUNT = FIRST_STREAM  # how many positions of a sample are predicted
    MASK_POSITIONS = FIRST_STREAM + 1  # which ones
    MASK_KIND = FIRST_STREAM + 2  # <mask>, a random piece or the token itself in that place
    MASK_PIECE = FIRST_STREAM + 3  # which random piece
    REPLAY = FIRST_STREAM + 4  # whether a sample is of another text
    CHATS = FIRST_STREAM + 5  # whether a sample is of dialogues
    EPOCH_ORDER = 0x20000  # order of the samples of an epoch, from the key of its sample 0


class LayerSites(NamedTuple):
    """Dropout sites of one layer: each head's attention probabilities, and before both sums."""

    heads: range
    attention_out: int
    ffn_out: int


@dataclass(frozen=True)
class DropoutSites:
    """Dropout sites of a network, numbered from the input to the output."""

    num_layers: int
    num_heads: int

    @staticmethod
    def fit(num_layers: int, num_heads: int) -> bool:
        """Return whether there are numbers for the dropouts of a network of this size."""
        return 2 + (num_heads + 2) * num_layers < FIRST_STREAM

    @property
    def embeddings(self) -> int:
        """The site of the sum of token and position embeddings."""
        return 0

    def layer(self, index: int) -> LayerSites:
        """Return the sites of layer `index`, counted from 0."""
        first = 1 + (self.num_heads + 2) * index
        after_heads = first + self.num_heads
        return LayerSites(range(first, after_heads), after_heads, after_heads + 1)

    @property
    def task_head(self) -> tuple[int, int]:
        """The sites of a task's head: its input, and the output of its inner layer."""
        first = self.layer(self.num_layers).heads.start
        return first, first + 1


def _u32(value: ArrayLike) -> Any:
    """Return integers, negative or wide ones too, modulo 2^32."""
    return np.asarray(value).astype(np.uint32, copy=False)


def hash32(values: ArrayLike) -> UInt32s:
    """Return lowbias32 of each element: a bijection of the 32-bit integers that mixes well."""
    return _hash_in_place(np.array(_u32(values)))


def _hash_in_place(x: UInt32s) -> UInt32s:
    first, second = HASH_MULTIPLIERS
    x ^= x >> 16
    x *= first
    x ^= x >> 15
    x *= second
    x ^= x >> 16
    return x


def sample_key(seed: int, epoch: ArrayLike, index: ArrayLike) -> UInt32s:
    """Return the key of each sample.

    Args:
        seed: the run's.
        epoch: an integer or an array.
        index: the sample in its epoch, an integer or an array; both broadcast.
    """
    index = np.asarray(index, dtype=np.uint64)
    key = hash32(hash32(_u32(seed) + _u32(GOLDEN)) + _u32(epoch))
    key = hash32(key + _u32(index))
    high = _u32(index >> np.uint64(32))
    return np.where(high != 0, hash32(key + high), key) if high.any() else key


def stream_key(key: ArrayLike, stream: int) -> UInt32s:
    """Return the key of one stream of each sample; streams of other numbers are independent."""
    return hash32(_u32(key) + _u32(stream * GOLDEN))


def draws(key: ArrayLike, first: int, count: int) -> UInt32s:
    """Return draws `first` … `first + count - 1` of each stream: (len(key), count).

    Within a row all are different, because hash32 is a bijection: ranking them has no ties.
    """
    return _hash_in_place(_u32(key)[:, None] + _counters(first, count))


@functools.lru_cache(maxsize=256)
def _counters(first: int, count: int) -> UInt32s:
    """Return what a key is hashed with for each draw, (count,); read-only: batches share it."""
    numbers = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    counters = _u32(numbers * np.uint64(GOLDEN))
    counters.flags.writeable = False
    return counters


def uniform(bits: UInt32s) -> NDArray[np.floating]:
    """Return draws as float64 in [0, 1)."""
    return bits * 2.0**-32


def uniform_below(bits: UInt32s, bound: int) -> NDArray[np.int64]:
    """Return draws as integers in [0, bound), by multiply and shift.

    The bias is below bound / 2^32.
    """
    return (bits.astype(np.uint64) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def permute(index: ArrayLike, n: int, seed: int, epoch: ArrayLike) -> NDArray[np.int64]:
    """Return where a pseudo-random permutation of range(n) puts `index`.

    A Feistel network permutes the smallest power of two that holds n. A result outside range(n)
    goes through it again ("cycle walking", Black and Rogaway 2002), which keeps it a bijection.
    Nothing of size n is ever held.

    Args:
        index: an integer below n, or an array of them.
        n: how many things are permuted.
        seed: with `epoch` it names the permutation.
        epoch: an integer, or an array that broadcasts with `index`.
    """
    epoch_key = stream_key(sample_key(seed, epoch, 0), Stream.EPOCH_ORDER)
    given, key = np.broadcast_arrays(np.asarray(index, dtype=np.uint64), epoch_key)
    assert (given < n).all()
    bits = max(2, (n - 1).bit_length())
    # A key for each round and index: (rounds, …).
    round_keys = hash32(np.add.outer(_FEISTEL_COUNTERS, key))
    permuted = given.copy()
    outside = np.ones(permuted.shape, bool)
    while outside.any():
        permuted[outside] = _feistel(permuted[outside], round_keys[:, outside], bits)
        outside = permuted >= n
    return permuted.astype(np.int64)


def _feistel(x: NDArray[np.uint64], round_keys: UInt32s, bits: int) -> NDArray[np.uint64]:
    """Permute range(2^bits) by keys; the halves may differ by one bit and swap at each round."""
    left_bits = bits // 2
    right_bits = bits - left_bits
    left = (x >> right_bits).astype(np.uint32)
    right = (x & ((1 << right_bits) - 1)).astype(np.uint32)
    for key in round_keys:
        mixed = _hash_in_place(key + right)
        mixed &= (1 << left_bits) - 1
        mixed ^= left
        left = right
        right = mixed
        left_bits, right_bits = right_bits, left_bits
    return left.astype(np.uint64) << np.uint64(right_bits) | right
