"""Alignment of a language's pieces to those of another by pairs of translated texts.

It is IBM's model 1 with a prior for the diagonal.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation"; the prior is that of Dyer
et al. 2013, "A Simple, Fast, and Effective Reparameterization of IBM Model 2", at its first value;
for embeddings of new tokens Remy et al. 2024, "Trans-Tokenization". Sums run in an order that the
pairs alone decide, in fp64.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.tokenizers.tokenizer import Tokenizer

ROUNDS = 5  # of EM; ten changed nothing
DIAGONAL = 4.0  # how fast the prior falls with the distance of two places, each a share of its text
NO_WORD = 0.08  # prior of a piece that comes of none
TOP = 5  # pieces that a row is made of; those as likely as the last count, too
POWER = 2.0  # of a probability, by which its piece's row is weighted
MAX_CELLS = 1 << 27  # of all pairs' tables; of more pairs a sample is taken
_CELLS = 1 << 22  # of pairs' tables that are worked on at a time
_TEXTS = 1 << 13  # that are encoded at a time
_EQUAL = 1e-9  # probabilities that differ by less, relatively, are equal

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_Ids = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True)
class Alignment:
    """What pieces of the target are translated by.

    Pieces come in order of their ids, and of each its translations, the likeliest first.

    Attributes:
        target: Id of a piece of the target (N).
        source: Id of a piece of the source (N).
        probability: t(source | target) (N).
    """

    target: Ints
    source: Ints
    probability: Floats


def align(
    sources: Sequence[_Ids],
    targets: Sequence[_Ids],
    rounds: int = ROUNDS,
) -> Alignment:
    """Find what each piece of the target is translated by: t(source | target) by EM.

    Each source piece of a pair comes of one of the target's pieces, or of none of them, rather of
    one at about the same place. The first probabilities are equal, so that there is one answer.

    Args:
        sources: ids of each pair's source, without special tokens.
        targets: ids of its target.
        rounds: of EM.

    Returns:
        All that a piece may be translated by with the probabilities of the last round.
    """
    no_word = 1 + max((int(np.max(ids)) for ids in targets if len(ids)), default=-1)
    num_sources = 1 + max((int(np.max(ids)) for ids in sources if len(ids)), default=0)
    parts: list[_Part] = []
    keys = np.empty(0, np.int64)
    waiting: list[Ints] = []
    for part, part_keys in _parts(sources, targets, no_word, num_sources):
        parts.append(part)
        waiting.append(part_keys)
        # Joined when they are as many again, so that each is sorted a few times at most.
        if sum(map(len, waiting)) > len(keys):
            keys = _distinct(np.concatenate([keys, *waiting]))
            waiting.clear()
    keys = _distinct(np.concatenate([keys, *waiting]))
    for part in parts:
        part.place_keys(keys)

    key_target = keys // num_sources
    probability = np.ones(len(keys))
    for _ in range(rounds):
        count = np.zeros(len(keys))
        for part in parts:
            count[part.keys] += part.expected(probability[part.keys])
        probability = count / np.bincount(key_target, weights=count)[key_target]
    order = np.lexsort((keys, -probability, key_target))
    order = order[key_target[order] != no_word]
    return Alignment(
        target=key_target[order],
        source=(keys % num_sources)[order],
        probability=probability[order],
    )


def _distinct(keys: Ints) -> Ints:
    """Return different keys in order; np.unique would hash them, which takes longer."""
    keys.sort()
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    return keys[is_first]


class _Part:
    """The tables of some pairs: each source piece beside each target piece, and beside none.

    keys: numbers of its two pieces' kinds, of each once. cells: of each cell its place in `keys`.
    shapes: (source pieces, target pieces) of each pair.
    """

    def __init__(self, keys: Ints, cells: NDArray[np.int32], shapes: list[tuple[int, int]]):
        self.keys = keys
        self._cells = cells
        self._shapes = shapes
        # Of each source piece the cells that belong to it follow one another.
        rows = np.array([shape[0] for shape in shapes])
        self._sizes = np.repeat(np.array([shape[1] for shape in shapes]) + 1, rows)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def place_keys(self, keys: Ints) -> None:
        """Replace its keys by their places among those of all parts."""
        self.keys = np.searchsorted(keys, self.keys).astype(np.int32)

    def expected(self, probability: Floats) -> Floats:
        """How often each of its keys is expected to stand for a translation."""
        share = probability[self._cells]
        share *= np.concatenate([_prior(*shape) for shape in self._shapes])
        share /= np.repeat(np.add.reduceat(share, self._starts), self._sizes)
        counts = np.bincount(self._cells, weights=share, minlength=len(probability))
        return counts.astype(np.float64, copy=False)


@cache
def _prior(num_source: int, num_target: int) -> Floats:
    """The prior of each cell of a pair's table, by rows; the last of a row is that of no word."""
    of_source = (np.arange(num_source) + 0.5) / num_source
    of_target = (np.arange(num_target) + 0.5) / num_target
    near = np.exp(-DIAGONAL * np.abs(of_source[:, None] - of_target))
    near *= (1 - NO_WORD) / near.sum(1, keepdims=True)
    return np.pad(near, ((0, 0), (0, 1)), constant_values=NO_WORD).ravel()


def _parts(
    sources: Sequence[_Ids],
    targets: Sequence[_Ids],
    no_word: int,
    num_sources: int,
) -> Iterator[tuple[_Part, Ints]]:
    """Parts of some pairs each, with their keys: id of the target * num_sources + of the source."""
    tables: list[Ints] = []
    shapes: list[tuple[int, int]] = []
    num_cells = 0

    def part() -> tuple[_Part, Ints]:
        keys, cells = np.unique(np.concatenate(tables), return_inverse=True)
        return _Part(keys, cells.astype(np.int32), list(shapes)), keys

    for source, target in zip(sources, targets, strict=True):
        if len(source) and len(target):
            candidates = np.append(target, no_word).astype(np.int64) * num_sources
            tables.append((np.asarray(source)[:, None] + candidates).ravel())
            shapes.append((len(source), len(target)))
            num_cells += len(tables[-1])
            if num_cells >= _CELLS:
                yield part()
                tables.clear()
                shapes.clear()
                num_cells = 0
    if tables:
        yield part()


@dataclass(frozen=True)
class Mixtures:
    """Rows as weighted sums of others.

    The row of the piece `target[i]` is mixed of the pieces `source[starts[i]:starts[i + 1]]`, whose
    weights add up to 1.
    """

    target: Ints
    starts: Ints
    source: Ints
    weight: Floats


def mixtures(alignment: Alignment, top: int = TOP, power: float = POWER) -> Mixtures:
    """What the row of each aligned piece is mixed of: the `top` likeliest pieces, by t ** power."""
    target, first, size = np.unique(alignment.target, return_index=True, return_counts=True)
    rank = np.arange(len(alignment.target)) - np.repeat(first, size)
    last = alignment.probability[first + np.minimum(size, top) - 1]
    chosen = (rank < top) | (alignment.probability >= np.repeat(last, size) * (1 - _EQUAL))
    weight = alignment.probability[chosen] ** power
    sizes = np.add.reduceat(chosen.astype(np.int64), first) if len(first) else size
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sums = np.add.reduceat(weight, starts[:-1]) if len(first) else weight
    return Mixtures(target, starts, alignment.source[chosen], weight / np.repeat(sums, sizes))


def sample(
    sources: Sequence[NDArray[np.int32]],
    targets: Sequence[NDArray[np.int32]],
    max_cells: int = MAX_CELLS,
) -> list[int]:
    """Choose the pairs to align: all, or a share where memory is short for them.

    Which pairs are chosen does not depend on their order.

    Args:
        sources: ids of each pair's source.
        targets: ids of its target.
        max_cells: largest sum of products of a pair's two lengths.

    Returns:
        Indices of pairs, in order.
    """
    cells = np.array(
        [len(one) * (len(other) + 1) for one, other in zip(sources, targets, strict=True)]
    )
    if cells.sum() <= max_cells:
        return [*range(len(cells))]
    draws = [
        zlib.crc32(target.tobytes(), zlib.crc32(source.tobytes()))
        for source, target in zip(sources, targets, strict=True)
    ]
    order = np.argsort(draws, kind="stable")
    count = np.searchsorted(np.cumsum(cells[order]), max_cells, side="right")
    return sorted(order[:count].tolist())


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """The ids of each text; as arrays they take a tenth of the memory of lists."""
    encoded: list[NDArray[np.int32]] = []
    for first in range(0, len(texts), _TEXTS):
        part = tokenizer.encode(texts[first : first + _TEXTS])
        encoded += [np.array(ids, np.int32) for ids in part]
    return encoded


def align_tokenizers(
    of_source: Tokenizer, of_target: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> Mixtures:
    """Return what rows of the target's vocabulary are mixed of, by pairs of texts.

    Of a vocabulary that extends the source's its new pieces alone, counted from 0.
    """
    num_base = of_target.vocabulary.num_base
    sources = _encoded(of_source, [source for source, _ in pairs])
    targets = _encoded(of_target, [target for _, target in pairs])
    chosen = sample(sources, targets)
    alignment = align([sources[i] for i in chosen], [targets[i] for i in chosen])
    special = of_source.vocabulary.special_ids
    is_new = (alignment.target >= num_base) & ~np.isin(alignment.source, special)
    kept = Alignment(
        target=alignment.target[is_new] - num_base,
        source=alignment.source[is_new],
        probability=alignment.probability[is_new],
    )
    return mixtures(kept)
