"""Static vectors of words, read from files, and of a vocabulary's pieces."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.errors import UserError
from ds_minimodel.tokenizers.tokenizer import Tokenizer

MAX_WORDS = 200_000  # the first of a file, which are the most frequent
_CHUNK = 10_000  # words that are tokenised at a time

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """words: by falling frequency. vectors: (words, D) fp32."""

    words: list[str]
    vectors: Floats


def read_vectors(path: str | Path, limit: int = MAX_WORDS) -> WordVectors:
    """The first `limit` words of a file in word2vec's text form (fastText's `.vec`, also
    `.vec.gz`).

    That is a line `words dimensions`, and for each word a line `word x1 … xD`. UserError where it
    is not.
    """
    words: list[str] = []
    rows: list[Floats] = []
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="\n") as file:
            count, size = map(int, file.readline().split())
            for line in islice(file, min(count, limit)):
                word, *numbers = line.rstrip().split(" ")
                words.append(word)
                rows.append(np.array(numbers, np.float32))
                if rows[-1].shape != (size,) or not np.isfinite(rows[-1]).all():
                    raise ValueError(
                        f"line {len(rows) + 1}: {word!r} has not {size} finite numbers"
                    )
        if len(rows) < min(count, limit) or not rows:
            raise ValueError(f"{len(rows)} of {count} words are there")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path in the recipe") from None
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{path}: not vectors in fastText's text form, a line `words dimensions` and then "
            f"`word x1 … xD` ({error})"
        ) from None
    return WordVectors(words, np.stack(rows))


def piece_vectors(tokenizer: Tokenizer, words: WordVectors) -> Floats:
    """A vector of each piece (V, D): the mean of the words in whose tokenisation it is, by
    frequency.

    What OFA does where no vectors of character n-grams are at hand. A word is tokenised at the
    start of a text and after a space; its frequency is taken as 1 / rank (Zipf), which the order of
    the file gives. Zero for pieces in no word.
    """
    sums = np.zeros((tokenizer.vocabulary.size, words.vectors.shape[1]), np.float64)
    weights = np.zeros(tokenizer.vocabulary.size)
    for first in range(0, len(words.words), _CHUNK):
        chunk = words.words[first : first + _CHUNK]
        for texts in (chunk, [f" {word}" for word in chunk]):
            uses = [
                (id, first + number)
                for number, ids in enumerate(tokenizer.encode(texts))
                for id in set(ids)
            ]
            ids, ranks = np.array(uses, np.int64).reshape(-1, 2).T
            order = np.argsort(ids, kind="stable")
            ids, ranks = ids[order], ranks[order]
            starts = np.flatnonzero(np.diff(ids, prepend=-1))
            of_use = 1 / (ranks + 1)
            if len(ids):
                sums[ids[starts]] += np.add.reduceat(words.vectors[ranks] * of_use[:, None], starts)
            weights += np.bincount(ids, of_use, tokenizer.vocabulary.size)
    return (sums / np.maximum(weights, 1e-30)[:, None]).astype(np.float32)
