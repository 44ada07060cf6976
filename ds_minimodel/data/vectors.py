"""Static vectors of words and pieces: read from files, aligned between two languages, or trained on a token store."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import Tokenizer

MAX_WORDS = 200_000  # the first of a file, which are the most frequent
_CHUNK = 10_000  # words that are tokenised at a time

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """words: by falling frequency. vectors: (words, D) fp32."""

    words: list[str]
    vectors: Floats


def read_size(path: str | Path) -> int:
    """Dimensions of the vectors in a file; UserError as read_vectors."""
    return int(_load(path, 1).vector_size)


def read_vectors(path: str | Path) -> WordVectors:
    """The first MAX_WORDS words of a file in word2vec's text form (fastText's `.vec`, also `.vec.gz`).

    UserError where gensim, which reads it, is missing or cannot.
    """
    found = _load(path, MAX_WORDS)
    first = found.vectors[:, :1]
    is_one_number = (found.vectors == first).all(1) & (first[:, 0] != 0)  # which gensim repeats over the dimensions
    wrong = ~np.isfinite(found.vectors).all(1) | (is_one_number & (found.vector_size > 1))
    if wrong.any():
        word, size = found.index_to_key[int(wrong.argmax())], found.vector_size
        raise UserError(f"{path}: the vector of {word!r} is not {size} finite numbers")
    return WordVectors(found.index_to_key, found.vectors)


def _load(path: str | Path, limit: int) -> Any:
    require_gensim("adapt.word_vectors")
    from gensim.models import KeyedVectors

    _require_file(path)
    try:
        return KeyedVectors.load_word2vec_format(str(path), limit=limit, unicode_errors="replace")
    except (ValueError, EOFError, OSError) as error:
        raise UserError(
            f"{path}: not vectors in fastText's text form, a line `words dimensions` and then `word x1 … xD` ({error})"
        ) from None


def read_dictionary(path: str | Path) -> list[tuple[str, str]]:
    """Pairs (source word, target word) of a dictionary: two words a line, a tab or space between."""
    pairs = []
    _require_file(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            pair = line.strip().split("\t") if "\t" in line else line.split()
            if not line.strip():
                continue
            if len(pair) != 2:
                raise UserError(f"{path}:{number}: {len(pair)} words where two are expected, a source and a target")
            pairs.append((pair[0], pair[1]))
    return pairs


def align(source: WordVectors, target: WordVectors, dictionary: list[tuple[str, str]], where: str | Path) -> Floats:
    """The rotation R (D, D) for which source.vectors @ R lie nearest to their translations in `target`.

    Orthogonal Procrustes over the dictionary's pairs in three spellings each (as given, lower case, title
    case), as WECHSEL's published code has it. where: the dictionary's file, for messages.
    """
    source_ids, target_ids = ({word: id for id, word in enumerate(language.words)} for language in (source, target))
    pairs = [
        (source_ids[left], target_ids[right])
        for first, second in dictionary
        for left in (first, first.lower(), first.title())
        for right in (second, second.lower(), second.title())
        if left in source_ids and right in target_ids
    ]
    if not pairs:
        raise UserError(f"{where}: none of its pairs has vectors in both languages")
    left, right = np.array(pairs).T
    u, _, vt = np.linalg.svd(source.vectors[left].T.astype(np.float64) @ target.vectors[right])
    return (u @ vt).astype(np.float32)


def piece_vectors(tokenizer: Tokenizer, words: WordVectors) -> Floats:
    """A vector of each piece (V, D): the mean of the words in whose tokenisation it is, by frequency.

    What WECHSEL (section 3) and OFA do where no vectors of character n-grams are at hand. A word is tokenised
    at the start of a text and after a space; its frequency is taken as 1 / rank (Zipf), which the order of
    the file gives. Zero for pieces in no word.
    """
    sums = np.zeros((tokenizer.vocabulary.size, words.vectors.shape[1]), np.float64)
    weights = np.zeros(tokenizer.vocabulary.size)
    for first in range(0, len(words.words), _CHUNK):
        chunk = words.words[first : first + _CHUNK]
        for texts in (chunk, [f" {word}" for word in chunk]):
            uses = [(id, first + number) for number, ids in enumerate(tokenizer.encode(texts)) for id in set(ids)]
            ids, ranks = np.array(uses, np.int64).reshape(-1, 2).T
            order = np.argsort(ids, kind="stable")
            ids, ranks = ids[order], ranks[order]
            starts = np.flatnonzero(np.diff(ids, prepend=-1))
            of_use = 1 / (ranks + 1)
            if len(ids):
                sums[ids[starts]] += np.add.reduceat(words.vectors[ranks] * of_use[:, None], starts)
            weights += np.bincount(ids, of_use, tokenizer.vocabulary.size)
    return (sums / np.maximum(weights, 1e-30)[:, None]).astype(np.float32)


def _require_file(path: str | Path) -> None:
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; check the path in the recipe")


# Vectors of pieces trained by fastText (gensim's implementation) on a token store.


MAX_TOKENS = 20_000_000  # the first of the store
# What FOCUS's published code sets; the rest is fastText's own. CBOW "is more closely aligned" with masked LM.
_FASTTEXT: dict[str, Any] = {
    "vector_size": 100,
    "epochs": 3,
    "min_count": 10,
    "negative": 10,
    "sg": 0,
    "window": 5,
    "alpha": 0.05,
    "sample": 1e-4,
    "min_n": 3,
    "max_n": 6,
    "bucket": 1 << 18,
}


def require_gensim(user: str) -> None:
    """Raise UserError, with the name of what needs gensim, where it is missing; it is not imported."""
    if importlib.util.find_spec("gensim") is None:
        raise UserError(f"{user} needs gensim, which is not installed; pip install 'ds_minimodel[focus]'")


def train_piece_vectors(store: TokenStore, tokenizer: Tokenizer, seed: int) -> Floats:
    """A vector of each piece (V, 100) from the store's text; zero for pieces seen fewer than 10 times.

    One thread, so that the result is a function of store and seed. UserError where gensim is missing.
    """
    require_gensim("adapt.initialisation: focus, without adapt.word_vectors,")
    from gensim.models import FastText

    pieces = tokenizer.pieces()
    vectors = np.zeros((len(pieces), _FASTTEXT["vector_size"]), np.float32)
    model = FastText(seed=seed, workers=1, **_FASTTEXT)
    model.build_vocab(_Sentences(store, pieces))
    if len(model.wv):
        model.train(_Sentences(store, pieces), total_examples=model.corpus_count, epochs=model.epochs)
    for id, piece in enumerate(pieces):
        if piece in model.wv.key_to_index:
            vectors[id] = model.wv[piece]
    return vectors


class _Sentences:
    """The sentences of a store as lists of pieces; can be iterated over more than once."""

    def __init__(self, store: TokenStore, pieces: list[str]):
        self.store, self.pieces = store, pieces
        self.eos = store.vocabulary.require("eos", "training of vectors")

    def __iter__(self) -> Iterator[list[str]]:
        for number in range(self.store.num_documents):
            start, stop = self.store.document(number)
            if start >= MAX_TOKENS:
                return
            tokens = self.store.read(start, stop)
            for sentence in np.split(tokens, np.flatnonzero(tokens == self.eos) + 1):
                if len(sentence) > 1:
                    yield [self.pieces[id] for id in sentence[:-1]]
