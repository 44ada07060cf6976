"""Retrieval of translations: two parallel files, and whether a sentence's nearest neighbour in the other language is
its translation (Tatoeba's form; XTREME's and BUCC's pairs). Nothing is finetuned.

A sentence is the hidden states of its tokens, their mean or that of `<s>`, and near is the cosine. Sentences that are
spelt alike are one, and each of its translations is right; of several that are equally near each counts for its share,
so that neither the order of the lines nor a model that takes all sentences for the same has an advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.sections import PositiveInt, Section
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.tasks.batches import Examples, join
from ds_minimodel.tasks.kind import Encoded, Labels, Logits, References, Scores, TaskKind, TaskSettings
from ds_minimodel.tasks.tables import read_text, text_lines

if TYPE_CHECKING:
    from ds_minimodel.data.tokenizer import Tokenizer
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel

Pool = Literal["mean", "first"]
_BLOCK = 1 << 24  # similarities that are held at a time
_SAME = 1e-6  # difference of two cosines that fp32 may make of one: products round by their place in a matrix


class RetrievalKeys(Section):
    """Keys of a retrieval task."""

    pool: Pool = "mean"
    """`retrieval`: a sentence's vector is the mean of its tokens' outputs, or the first token's."""
    depth: PositiveInt | None = None
    """`retrieval`: layers that are run; all where not given, or where a body has fewer."""


@dataclass(frozen=True)
class Bitext:
    """Different sentences of a language, and of the source language their different translations.

    pairs: (N, 2) int64, a sentence and a translation of it, for each line of the files. vectors: (translations, H).
    """

    sentences: list[str]
    translations: list[str]
    pairs: np.ndarray
    vectors: np.ndarray | None = None


class Retrieval(TaskKind[Bitext, Encoded]):
    """The translation of each sentence among those of all, in both directions."""

    name = "retrieval"
    form = "two files, line by line translations of each other"
    keys = RetrievalKeys
    has_translations = True
    scored_with_source = True
    has_labels = False
    reads_start = False

    def read(self, path: str, task: TaskSettings, language: str, labels: Labels) -> Bitext:
        return read_bitext(path, task.translations[language])

    def with_source(self, records: Bitext, outputs: Callable[[Bitext], tuple[Encoded, Logits]]) -> Bitext:
        _, logits = outputs(replace(records, sentences=records.translations))
        return replace(records, vectors=collected(logits, len(records.translations)))

    def encode(
        self, tokenizer: Tokenizer, records: Bitext, task: TaskSettings, max_length: int, separators: int = 2
    ) -> Encoded:
        ids = tokenizer.encode(records.sentences)
        return Encoded(sentences_of(tokenizer.vocabulary, ids, max_length, _keys_of(task).pool))

    def body_config(self, task: TaskSettings, config: BodyConfig) -> BodyConfig:
        depth = min(_keys_of(task).depth or config.num_layers, config.num_layers)
        return config.with_layers(depth)

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        from ds_minimodel.models.trainable import SentenceEncoder

        return SentenceEncoder(config, vocab_size)

    def score(self, task: TaskSettings, language: str, records: Bitext, encoded: Encoded, logits: Logits) -> Scores:
        """ "to_source" and "from_source": where the neighbours are looked for; "score" is the mean of the two."""
        assert records.vectors is not None
        own, of_source = unit(collected(logits, len(records.sentences))), unit(records.vectors)
        return _both(lambda rows: own[rows] @ of_source.T, lambda rows: of_source[rows] @ own.T, records)

    def metric(self, task: TaskSettings, source: str) -> str:
        return "accuracy of nearest neighbours, mean of both directions"

    def references(self, task: TaskSettings, tests: Mapping[str, str], source: str) -> References:
        """A guess among all, and the nearest by TF-IDF of letters."""
        from ds_minimodel.tasks import references

        chance: dict[str, float] = {}
        letters: dict[str, float] | str = {}
        for language, path in tests.items():
            records = self.read(path, task, language, None)
            chance[language] = _chance(records)
            similarity = references.letter_similarities(records.sentences, records.translations)
            if isinstance(similarity, str) or isinstance(letters, str):
                letters = similarity if isinstance(similarity, str) else letters
            else:
                letters[language] = _both(*similarity, records)["score"]
        return {"chance": chance, "TF-IDF of letters": letters}


def _keys_of(task: TaskSettings) -> RetrievalKeys:
    assert isinstance(task, RetrievalKeys)
    return task


# --- Files ---


def read_bitext(path: str, other: str) -> Bitext:
    """The sentences of two files of which line n of one translates line n of the other, the second in the source.

    Lines that are empty in both are left out. UserError with file and line where they are not parallel.
    """
    lines, of_source = (text_lines(read_text(name), name) for name in (path, other))
    if len(lines) != len(of_source):
        raise UserError(
            f"{path}: has {len(lines):,} lines, {other} {len(of_source):,}; line n of one must translate line n of "
            "the other"
        )
    sentences: dict[str, int] = {}
    translations: dict[str, int] = {}
    pairs = []
    for line, both in enumerate(zip(map(str.strip, lines), map(str.strip, of_source), strict=True), 1):
        if all(both):
            number = sentences.setdefault(both[0], len(sentences))
            pairs.append((number, translations.setdefault(both[1], len(translations))))
        elif any(both):
            empty, full = (path, other) if both[1] else (other, path)
            raise UserError(f"{empty}:{line}: empty, where {full} has a sentence; delete the line in both, or fill it")
    if not pairs:
        raise UserError(f"{path}: no sentences; a task needs some")
    return Bitext([*sentences], [*translations], np.array(pairs, dtype=np.int64))


def sentences_of(vocabulary: Vocabulary, ids: Sequence[Sequence[int]], max_length: int, pool: Pool) -> Examples:
    """`<s>A</s>` for the ids of each text, cut to `max_length` tokens; an empty one is `<s></s>`."""
    if max_length < 3:
        raise UserError(f"max_length {max_length}: too short for a sentence; raise it in the recipe")
    if pool == "first":
        vocabulary.require("bos", "a sentence's vector")
    before, after = vocabulary.frame
    room = max_length - len(before) - len(after)
    sequences = [np.array([*before, *of_text[:room], *after]) for of_text in ids]
    return join(sequences, np.zeros(len(sequences)), reads_start=pool == "first")


# --- Neighbours ---


def collected(outputs: Logits, count: int) -> np.ndarray:
    """(count, H) of the vectors in batches."""
    found: np.ndarray | None = None
    for index, vectors_BH in outputs:
        found = np.zeros((count, vectors_BH.shape[1]), np.float32) if found is None else found
        found[index] = vectors_BH
    assert found is not None
    return found


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; of length 0 where they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def _chance(records: Bitext) -> float:
    """Percent of the pairs in which a guess among all candidates is right, mean of both directions."""
    different = np.unique(records.pairs, axis=0)
    shares = [
        np.bincount(different[:, side])[records.pairs[:, side]].mean() / count
        for side, count in enumerate((len(records.translations), len(records.sentences)))
    ]
    return 50.0 * float(sum(shares))


Similarity = Callable[[slice], np.ndarray]  # of some sentences to all of the other language


def _both(to_source: Similarity, from_source: Similarity, records: Bitext) -> Scores:
    counts = len(records.sentences), len(records.translations)
    there = neighbour_accuracy(to_source, records.pairs, *counts)
    back = neighbour_accuracy(from_source, records.pairs[:, ::-1], *counts[::-1])
    return {"score": (there + back) / 2, "to_source": there, "from_source": back}


def neighbour_accuracy(
    similarity: Callable[[slice], np.ndarray], pairs: np.ndarray, num_queries: int, num_candidates: int
) -> float:
    """Percent of `pairs` (N, 2), a query and a candidate each, whose query has its nearest candidate in one of them.

    similarity: (rows, candidates) cosines of some rows of the queries. Of k candidates that are equally near, but for
    rounding, each counts for 1/k; so they do not depend on their order.
    """
    right = np.unique(pairs[:, 0] * num_candidates + pairs[:, 1])
    found = np.zeros(num_queries)
    size = max(1, _BLOCK // num_candidates)
    for first in range(0, num_queries, size):
        similarity_QC = similarity(slice(first, first + size))
        rows, nearest = np.nonzero(similarity_QC >= similarity_QC.max(1, keepdims=True) - _SAME)
        keys = (first + rows) * num_candidates + nearest
        is_right = right[np.minimum(np.searchsorted(right, keys), len(right) - 1)] == keys
        count = len(similarity_QC)
        shares = np.maximum(np.bincount(rows, minlength=count), 1)  # none is nearest where a similarity is NaN
        found[first : first + count] = np.bincount(rows, is_right, count) / shares
    return 100.0 * float(found[pairs[:, 0]].mean())
