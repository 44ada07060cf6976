"""Counter-based randomness: a draw is a hash of what it is for, so nothing else can change it.

No generator holds state. Masks, order and dropout depend on (seed, epoch, sample, position) only:
not on the rank, on how a batch is split, or on what was drawn before. All arithmetic is uint32.
"""

import numpy as np

GOLDEN = 0x9E3779B9
_ROUNDS = 8
_ORDER = 0x20000  # stream of the permutation; no sample draws from it


def _u32(value):
    """`value` (integers, negative or wide ones too) modulo 2^32, in an array of its own."""
    return np.array(value).astype(np.uint32)


def hash32(x):
    """lowbias32, a bijection of the 32-bit integers that mixes well (Wellons, "Hash Prospector")."""
    x = _u32(x)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def sample_key(seed, epoch, index):
    """Key (uint32) of each sample; `epoch` and `index` are integers or arrays that broadcast."""
    index = np.asarray(index, dtype=np.uint64)
    key = hash32(hash32(_u32(seed) + _u32(GOLDEN)) + _u32(epoch))
    key = hash32(key + _u32(index))
    high = _u32(index >> np.uint64(32))
    return np.where(high != 0, hash32(key + high), key)


def stream(key, number):
    """Key of an independent stream of draws of each sample; `number` tells the streams apart."""
    return hash32(_u32(key) + _u32(number * GOLDEN))


def draws(key, first, count):
    """Draws `first` … `first + count - 1` of each stream: (len(key), count) uint32.

    Within a row all are different, because hash32 is a bijection: ranking them has no ties.
    """
    counters = _u32((np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))
    return hash32(_u32(key)[:, None] + counters)


def uniform(bits):
    """uint32 draws as float64 in [0, 1)."""
    return bits * 2.0**-32


def below(bits, bound):
    """uint32 draws as int64 in [0, bound), by multiply and shift; the bias is below bound / 2^32."""
    return (bits.astype(np.uint64) * np.uint64(bound) >> np.uint64(32)).astype(np.int64)


def permute(index, n, seed, epoch):
    """Place of `index` in a pseudo-random permutation of range(n) that (seed, epoch) name.

    A Feistel network on the smallest power of two that holds n; a result outside range(n) goes
    through it again ("cycle walking", Black and Rogaway 2002), which keeps it a bijection. Nothing
    of size n is ever held. `index` and `epoch` are integers or arrays that broadcast; int64 result.
    """
    key = stream(sample_key(seed, epoch, 0), _ORDER)
    place, key = np.broadcast_arrays(np.asarray(index, dtype=np.uint64), key)
    place = place.copy()
    assert (place < n).all()
    bits = max(2, (n - 1).bit_length())
    outside = np.ones(place.shape, bool)
    while outside.any():
        place[outside] = _feistel(place[outside], key[outside], bits)
        outside = place >= n
    return place.astype(np.int64)


def _feistel(x, key, bits):
    """A keyed bijection of range(2^bits); the halves may differ by one bit and swap at each round."""
    left_bits, right_bits = bits // 2, bits - bits // 2
    left = _u32(x >> np.uint64(right_bits))
    right = _u32(x & np.uint64((1 << right_bits) - 1))
    for number in range(_ROUNDS):
        mixed = hash32(hash32(key + _u32(number * GOLDEN)) + right)
        left, right = right, left ^ (mixed & _u32((1 << left_bits) - 1))
        left_bits, right_bits = right_bits, left_bits
    return left.astype(np.uint64) << np.uint64(right_bits) | right
