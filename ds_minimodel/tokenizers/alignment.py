"""Alignment of a language's pieces to those of another by pairs of translated texts: IBM's model 1.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation"; for embeddings of new
tokens Remy et al. 2024, "Trans-Tokenization". Sums run in an order that the pairs alone decide, in
fp64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.tokenizers.tokenizer import Tokenizer

ROUNDS = 5  # of EM; ten changed nothing
TOP = 5  # pieces that a row is made of; those as likely as the last count, too
POWER = 2.0  # of a probability, by which its piece's row is weighted
_CELLS = 1 << 22  # of pairs' tables that are worked on at a time
_EQUAL = 1e-9  # probabilities that differ by less, relatively, are equal

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Alignment:
    """What pieces of the target are translated by, in order of their ids, and of each the likeliest
    first.

    Attributes:
        target: Id of a piece of the target (N).
        source: Id of a piece of the source (N).
        probability: t(source | target) (N).
        count: How often the target's piece was taken for the source's (N).
    """

    target: Ints
    source: Ints
    probability: Floats
    count: Floats


def align(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    rounds: int = ROUNDS,
) -> Alignment:
    """Find what each piece of the target is translated by: t(source | target) by EM.

    Each source piece of a pair comes of one of the target's pieces, or of none of them. The first
    probabilities are equal, so that there is one answer.

    Args:
        sources: ids of each pair's source, without special tokens.
        targets: ids of its target.
        rounds: of EM.

    Returns:
        All that a piece may be translated by with the probabilities of the last round.
    """
    null = 1 + max((max(ids) for ids in targets if len(ids)), default=-1)
    num_source = 1 + max((max(ids) for ids in sources if len(ids)), default=-1)
    parts = list(_parts(sources, targets, null))
    keys = np.unique(np.concatenate([np.unique(part.keys(num_source)) for part in parts] or [[]]))
    keys = keys.astype(np.int64)
    key_target = keys // num_source if len(keys) else keys
    places = [np.searchsorted(keys, part.keys(num_source)).astype(np.int32) for part in parts]
    probability = np.ones(len(keys))
    count = np.zeros(len(keys))
    for _ in range(rounds):
        count = np.zeros(len(keys))
        for part, place in zip(parts, places, strict=True):
            share = probability[place]
            share /= np.repeat(np.add.reduceat(share, part.starts), part.sizes)
            count += np.bincount(place, weights=share, minlength=len(keys))
        probability = count / np.bincount(key_target, weights=count)[key_target]
    order = np.lexsort((keys, -probability, key_target))
    order = order[key_target[order] != null]
    return Alignment(
        target=key_target[order],
        source=(keys % max(1, num_source))[order],
        probability=probability[order],
        count=count[order],
    )


@dataclass(frozen=True)
class _Part:
    """The tables of some pairs: each source piece beside each target piece, and beside none.

    source, target: of each cell. starts, sizes: the cells of a source piece of a line.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    starts: Ints
    sizes: Ints

    def keys(self, num_source: int) -> Ints:
        """A number for each cell that stands for its two pieces."""
        return self.target.astype(np.int64) * num_source + self.source


def _parts(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], null: int):
    cells_source: list[NDArray[np.int32]] = []
    cells_target: list[NDArray[np.int32]] = []
    sizes: list[NDArray[np.int64]] = []
    num_cells = 0

    def part() -> _Part:
        of_words = np.concatenate(sizes)
        starts = np.cumsum(of_words) - of_words
        return _Part(np.concatenate(cells_source), np.concatenate(cells_target), starts, of_words)

    for source, target in zip(sources, targets, strict=True):
        if len(source) and len(target):
            candidates = np.array([*target, null], np.int32)
            cells_target.append(np.tile(candidates, len(source)))
            cells_source.append(np.repeat(np.array(source, np.int32), len(candidates)))
            sizes.append(np.full(len(source), len(candidates)))
            num_cells += len(source) * len(candidates)
            if num_cells >= _CELLS:
                yield part()
                cells_source.clear()
                cells_target.clear()
                sizes.clear()
                num_cells = 0
    if num_cells:
        yield part()


@dataclass(frozen=True)
class Mixtures:
    """Rows as weighted sums of others: of the piece `target[i]` the pieces
    `source[starts[i]:starts[i + 1]]`, whose weights add up to 1.
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


def align_tokenizers(
    of_source: Tokenizer, of_target: Tokenizer, pairs: Sequence[tuple[str, str]]
) -> Mixtures:
    """What rows of the target's vocabulary are mixed of, by pairs of a source's text and its
    translation.

    Of a vocabulary that extends the source's its new pieces alone, counted from 0.
    """
    num_base = of_target.vocabulary.num_base
    sources = of_source.encode([source for source, _ in pairs])
    targets = of_target.encode([target for _, target in pairs])
    alignment = align(sources, targets)
    special = of_source.vocabulary.special_ids
    is_new = (alignment.target >= num_base) & ~np.isin(alignment.source, special)
    kept = Alignment(
        target=alignment.target[is_new] - num_base,
        source=alignment.source[is_new],
        probability=alignment.probability[is_new],
        count=alignment.count[is_new],
    )
    return mixtures(kept)
