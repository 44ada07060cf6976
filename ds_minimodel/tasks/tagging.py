"""Tagging: a label for each word of a sentence, named entities or parts of speech.

Files are CoNLL-U or have a word and its tag on each line; a word's label is that of its first piece. Named entities
are scored by the F1 of whole entities, by the strict rules of the library seqeval (mode="strict", scheme=IOB2), parts
of speech by accuracy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.data.rows import text_field
from ds_minimodel.tasks.batches import join
from ds_minimodel.tasks.kind import (
    Encoded,
    FinetunedKind,
    Labels,
    Logits,
    References,
    Request,
    Scores,
    TaskSettings,
    accuracy,
)
from ds_minimodel.tasks.tables import numbered, read_text, text_lines

if TYPE_CHECKING:
    from ds_minimodel.data.tokenizer import Tokenizer
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel

OUTSIDE = "O"  # the tag of words that are in no entity
_CUT = -1  # predicted id of a word that did not fit the sequence: no label
_TREEBANK = ".conllu"
_WIKIANN = re.compile("[a-z][a-z-]*:")  # before each word of a WikiANN file: its language


@dataclass(frozen=True)
class Sentences:
    """Tagged sentences. words: of each sentence. targets: (words,) int64 of each sentence, into `labels`."""

    words: list[list[str]]
    targets: list[np.ndarray]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class TaggedTokens(Encoded):
    """Sentences as tokens. first_pieces: (words that fit,) of each sentence, the position of each word's first."""

    first_pieces: list[np.ndarray]


class Tagging(FinetunedKind[Sentences, TaggedTokens]):
    """One label for each word."""

    name = "tagging"
    form = "CoNLL-U's columns, or a word first and its tag last on each line"
    fields = ("text",)
    reads_start = False
    hugging_face_class = "ForTokenClassification"
    head_names = {"out": "classifier"}

    def read(self, path: str, task: TaskSettings, language: str, labels: Sequence[str] | None) -> Sentences:
        return read_tagged(path, labels)

    def labels(self, task: TaskSettings, source: str) -> list[str]:
        return task.labels or list(read_tagged(task.train).labels)

    def encode(
        self, tokenizer: Tokenizer, records: Sentences, task: TaskSettings, max_length: int, separators: int = 2
    ) -> TaggedTokens:
        return encode_words(tokenizer, records, max_length)

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        from ds_minimodel.models.trainable import TokenClassifier

        return TokenClassifier(config, vocab_size, self.num_outputs(labels))

    def score(
        self, task: TaskSettings, language: str, records: Sentences, encoded: TaggedTokens, logits: Logits
    ) -> Scores:
        return score_tags(predicted_tags(encoded, records, logits), records)

    def metric(self, task: TaskSettings, source: str) -> str:
        return "entity F1" if has_entities(self.labels(task, source)) else "accuracy"

    def references(self, task: TaskSettings, tests: Mapping[str, str], source: str) -> References:
        """The training file's most frequent tag for every word; for each word that it has, the word's own."""
        labels = self.labels(task, source)
        train = read_tagged(task.train, labels)
        by_word: dict[str, Counter[int]] = {}
        for words, targets in zip(train.words, train.targets, strict=True):
            for word, target in zip(words, targets.tolist(), strict=True):
                by_word.setdefault(word, Counter())[target] += 1
        majority = _most_frequent(sum(by_word.values(), Counter()))
        of_word = {word: _most_frequent(counts) for word, counts in by_word.items()}

        def score(known: Mapping[str, int], test: Sentences) -> float:
            tags = [np.array([known.get(word, majority) for word in words]) for words in test.words]
            return score_tags(tags, test)["score"]

        read = {language: read_tagged(path, labels) for language, path in tests.items()}
        return {
            name: {language: score(known, test) for language, test in read.items()}
            for name, known in (("majority", {}), ("majority of each word", of_word))
        }

    def check_request(self, request: Request, where: str) -> None:
        if "tokens" not in request:
            super().check_request(request, where)
            return
        words = request["tokens"]
        if not isinstance(words, list):
            raise UserError(f"{where}: 'tokens' is not a list of words")
        for number, word in enumerate(words):
            text_field({f"tokens[{number}]": word}, f"tokens[{number}]", where)

    def encode_requests(
        self, tokenizer: Tokenizer, requests: Sequence[Request], labels: Labels, max_length: int, separators: int = 2
    ) -> tuple[Sentences, TaggedTokens]:
        """The words are the request's "tokens", else its "text" cut at white space."""
        assert labels is not None
        words = [_words_of(request) for request in requests]
        records = Sentences(words, [np.zeros(len(row), dtype=np.int64) for row in words], tuple(labels))
        return records, encode_words(tokenizer, records, max_length)

    def answers(
        self, records: Sentences, encoded: TaggedTokens, logits: Logits, labels: Labels
    ) -> list[dict[str, object]]:
        """{"tokens", "tags": one a word, null beyond the model's length}, of entities "entities" too."""
        answers: list[dict[str, object]] = []
        for words, ids in zip(records.words, predicted_tags(encoded, records, logits), strict=True):
            names = _names(ids, records.labels)
            answer: dict[str, object] = {"tokens": words, "tags": names}
            if has_entities(records.labels):
                answer["entities"] = [
                    {"type": type, "text": " ".join(words[start:end]), "start": start, "end": end}
                    for type, start, end in entities(names)
                ]
            answers.append(answer)
        return answers


def _words_of(request: Request) -> list[str]:
    if "tokens" in request:
        assert isinstance(request["tokens"], list)
        return request["tokens"]
    return str(request["text"]).split()


def _most_frequent(counts: Counter[int]) -> int:
    """The most frequent; of several equally frequent ones the first in order."""
    return min(counts, key=lambda target: (-counts[target], target))


# --- Files ---


def read_tagged(path: str | Path, labels: Sequence[str] | None = None) -> Sentences:
    """The sentences of a file with a word on each line and an empty line after each sentence.

    A .conllu file gives the column UPOS; comments, ranges of words that are written as one (1-2) and empty nodes
    (1.1) are passed over. Any other has the word first and its tag last, separated by a tab or a space: two columns,
    CoNLL-2003's four; -DOCSTART- lines are passed over, and where each word has its language before it (WikiANN:
    "de:Berlin") that is cut off. Tags of entities are made IOB2's, in which each entity begins with B-: CoNLL-2003
    as published (IOB1) marks only those so that follow another of their type.

    labels: the task's in order of their ids; where None, those of the file, sorted. UserError with file and line for
    what is damaged or not of the task.
    """
    is_treebank = Path(path).suffix == _TREEBANK
    width = 10 if is_treebank else 0
    sentences: list[list[tuple[int, str, str]]] = [[]]
    for line, content in enumerate(text_lines(read_text(path), path), 1):
        if not content.strip() or content.startswith("-DOCSTART-"):
            sentences.append([])
        elif not (is_treebank and content.startswith("#")):
            columns = content.split("\t" if is_treebank or "\t" in content else " ")
            width = width or max(2, len(columns))
            if len(columns) != width:
                raise UserError(f"{path}:{line}: {len(columns)} columns where {width} are expected")
            if is_treebank and not columns[0].isdecimal():
                continue
            word, tag = (columns[1], columns[3]) if is_treebank else (columns[0], columns[-1])
            if not word.strip() or tag.strip() in ("", "_"):
                raise UserError(f"{path}:{line}: '{word}', '{tag}' where a word and its tag are expected")
            sentences[-1].append((line, word, tag))
    sentences = list(filter(None, sentences))
    rows = [row for sentence in sentences for row in sentence]
    if not rows:
        raise UserError(f"{path}: no sentences; a task needs some")
    if has_entities(tag for *_, tag in rows):
        rows = [row for sentence in sentences for row in _with_beginnings(sentence, path)]
    languages = {match[0] if (match := _WIKIANN.match(word)) else "" for _, word, _ in rows}
    language = languages.pop() if len(languages) == 1 else ""
    names, targets = numbered(path, [(line, tag) for line, _, tag in rows], labels)
    return Sentences(
        [[word.removeprefix(language) for _, word, _ in sentence] for sentence in sentences],
        np.split(targets, np.cumsum([len(sentence) for sentence in sentences])[:-1]),
        names,
    )


def _with_beginnings(sentence: list[tuple[int, str, str]], path: str | Path) -> list[tuple[int, str, str]]:
    """Rows whose tags are in IOB2: an I- that follows no tag of its type becomes a B-."""
    rows, before = [], OUTSIDE
    for line, word, tag in sentence:
        if tag != OUTSIDE and tag[:2] not in ("B-", "I-"):
            raise UserError(f"{path}:{line}: tag '{tag}' where tags of entities are O, B-TYPE or I-TYPE")
        if tag[:2] == "I-" and before[2:] != tag[2:]:
            tag = f"B-{tag[2:]}"
        rows.append((line, word, tag))
        before = tag
    return rows


# --- Words as tokens ---


def encode_words(tokenizer: Tokenizer, records: Sentences, max_length: int) -> TaggedTokens:
    """`<s>`, the pieces of the words, `</s>`; a word's first piece has its target, all other tokens none.

    Each word is encoded alone, as after a space; one without a piece is `<unk>` (`</s>` where there is none). A
    sentence that is too long is cut after the last whole word that fits (of a first word that does not, after the last
    piece).
    """
    if max_length < 3:
        raise UserError(f"max_length {max_length}: too short for a word; raise it in the recipe")
    bos, eos = tokenizer.vocabulary.bounds("tagging")
    empty = tokenizer.vocabulary.unk if tokenizer.vocabulary.unk is not None else eos  # a word of no piece
    sequences, targets, first_pieces = [], [], []
    for words, targets_W in zip(records.words, records.targets, strict=True):
        pieces = [ids or [empty] for ids in tokenizer.encode([f" {word}" for word in words])]
        pieces[:1] = [ids[: max_length - 2] for ids in pieces[:1]]
        ends_W = 1 + np.cumsum([len(ids) for ids in pieces], dtype=np.int64)
        kept = int(np.searchsorted(ends_W, max_length - 1, side="right"))
        first_W = np.concatenate([[1], ends_W])[:kept]
        sequence = np.array([bos, *(id for ids in pieces[:kept] for id in ids), eos])
        target = np.full(len(sequence), IGNORED, dtype=np.int64)
        target[first_W] = targets_W[:kept]
        sequences.append(sequence)
        targets.append(target)
        first_pieces.append(first_W)
    return TaggedTokens(join(sequences, np.concatenate(targets), reads_start=False, per_token=True), first_pieces)


def predicted_tags(encoded: TaggedTokens, records: Sentences, logits: Logits) -> list[np.ndarray]:
    """Label ids of each sentence's words, (words,); -1 for those that were cut off."""
    found = [np.full(len(words), _CUT, dtype=np.int64) for words in records.words]
    for index, logits_BSL in logits:
        for number, ids_S in zip(index, logits_BSL.argmax(-1), strict=True):
            first_W = encoded.first_pieces[number]
            found[number][: len(first_W)] = ids_S[first_W]
    return found


# --- Scores ---


def score_tags(predicted: Sequence[np.ndarray], records: Sentences) -> Scores:
    """{"score": F1, "precision", "recall"} of entities; {"score": accuracy} where the labels are of no entities.

    predicted: label ids of each sentence's words. Every word of the file counts: one that was cut off (-1) is
    predicted to be outside of entities, and its part of speech is wrong.
    """
    if has_entities(records.labels):
        gold, found = ([_names(ids, records.labels) for ids in sentences] for sentences in (records.targets, predicted))
        return score_entities(found, gold)
    return {"score": accuracy(np.concatenate(predicted), np.concatenate(records.targets))}


def score_entities(predicted: Sequence[Sequence[str | None]], gold: Sequence[Sequence[str | None]]) -> Scores:
    """F1, precision and recall, in percent, of the entities in sentences of tags; 0 where there are none."""
    right = num_predicted = num_gold = 0
    for tags, gold_tags in zip(predicted, gold, strict=True):
        assert len(tags) == len(gold_tags)
        found, expected = set(entities(tags)), set(entities(gold_tags))
        right += len(found & expected)
        num_predicted += len(found)
        num_gold += len(expected)
    precision, recall = right / max(1, num_predicted), right / max(1, num_gold)
    f1 = 2 * right / max(1, num_predicted + num_gold)
    return {"score": 100 * f1, "precision": 100 * precision, "recall": 100 * recall}


def entities(tags: Sequence[str | None]) -> list[tuple[str, int, int]]:
    """(type, first word, end) of a sentence's entities: B-TYPE and all I-TYPE that follow.

    An I- that follows no tag of its type is in no entity (IOB2 taken strictly), nor is a word without a tag.
    """
    found: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        prefix, type = (tag or OUTSIDE)[:2], (tag or OUTSIDE)[2:]
        if prefix == "B-":
            found.append((type, place, place + 1))
        elif prefix == "I-" and found and found[-1] == (type, found[-1][1], place):
            found[-1] = (type, found[-1][1], place + 1)
    return found


def has_entities(labels: Iterable[str]) -> bool:
    """Whether labels are tags of entities rather than classes of words."""
    return any(label.startswith(("B-", "I-")) for label in labels)


def _names(ids: np.ndarray, labels: Sequence[str]) -> list[str | None]:
    """Tags of a sentence's words, None for those that were cut off."""
    return [None if id == _CUT else labels[id] for id in ids.tolist()]
