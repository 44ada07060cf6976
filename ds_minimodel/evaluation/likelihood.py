"""How likely a text is to a body: bits per byte, of a masked body those of hidden words.

Nothing is finetuned. All count bytes of the raw text, so that vocabularies compare.
"""

from __future__ import annotations

import lzma
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationInfo, model_validator

from ds_minimodel.common.config import NonNegativeInt, PositiveInt
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.random import Stream, draws, sample_key, stream_key, uniform
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.evaluation.batches import join
from ds_minimodel.evaluation.kind import (
    C,
    Encoded,
    Labels,
    Logits,
    R,
    Scores,
    TaskConfig,
    TaskKind,
)
from ds_minimodel.text.reader import read_documents

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer

CONTEXT_BYTES = 600  # from which a token is predicted, where nothing else is said
SHARE = 0.15  # of words that are hidden


@dataclass(frozen=True)
class Scored(Encoded):
    """Sequences of which the tokens from `first` (N,) on are scored; `owner` (N,) is the text that
    each is of.

    unknown: (texts,) how many of each text's bytes the vocabulary has no piece for.
    """

    first: np.ndarray
    owner: np.ndarray
    unknown: Sequence[int]

    def nats(self, logits: Logits) -> np.ndarray:
        """Sum of the negative log-likelihoods of each text's tokens, (texts,), and 8 bits for each
        unknown byte, as if it were spelt out. logits: log-likelihoods (B, S).
        """
        nats = math.log(256) * np.array(self.unknown, dtype=np.float64)
        lengths = self.examples.lengths
        for index, likelihoods_BS in logits:
            places = np.arange(likelihoods_BS.shape[1])
            scored = (places >= self.first[index, None]) & (places < lengths[index, None])
            np.add.at(
                nats,
                self.owner[index],
                -np.where(scored, likelihoods_BS, 0).sum(1, dtype=np.float64),
            )
        return nats


class LikelihoodKind(TaskKind[R, Scored, C]):
    """A kind that asks how likely tokens are."""

    objective = "causal-lm"
    has_labels = False
    reads_start = False

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        from ds_minimodel.models.trainable import TokenLikelihoods

        return TokenLikelihoods(config, vocab_size)


@dataclass(frozen=True)
class Documents:
    texts: list[str]

    @property
    def num_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


class DocumentKind(LikelihoodKind[Documents, C]):
    """A kind that counts the bits of documents, each of which stands between empty lines, as in
    text to train on.
    """

    def read(self, path: str, task: C, language: str, labels: Labels) -> Documents:
        return Documents(["\n".join(document) for document in read_documents([path])])

    def score(
        self, task: C, language: str, records: Documents, encoded: Scored, logits: Logits
    ) -> Scores:
        """ "bits_per_byte"; "score" is bytes in 100 bits: more is better."""
        bits = float(encoded.nats(logits).sum()) / math.log(2) / records.num_bytes
        return {"score": 100 / bits, "bits_per_byte": bits}

    def metric(self, task: C) -> str:
        return "bytes in 100 bits (100 / bits per byte)"


class TextConfig(TaskConfig):
    """What a recipe says of documents whose bits are counted."""

    kind: Literal["bits-per-byte"]
    context_bytes: NonNegativeInt = 0
    """Bytes of a part, at most `max_length`. 0, where there is no `base`: parts of `max_length`
    tokens.
    """

    @property
    def least_length(self) -> int:
        return max(super().least_length, self.context_bytes)  # a token is a byte at least

    @model_validator(mode="after")
    def _vocabularies_compare(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get("base") and not self.context_bytes:
            raise ValueError("give context_bytes, by which the base's tokens and new ones compare")
        return self


class Text(DocumentKind[TextConfig]):
    """Bits per byte of documents.

    Vocabularies compare at equal bytes of context: of longer pieces as many tokens hold more text.
    """

    name = "bits-per-byte"
    config = TextConfig

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Documents,
        task: TextConfig,
        max_length: int,
        separators: int = 2,
    ) -> Scored:
        """Each document after the tokenizer's `scored_after`; what is longer than `max_length` in
        parts that begin as samples of training do; with `context_bytes` what has more bytes than
        these.
        """
        start, sequences, owner, unknown = _scored_after(tokenizer), [], [], []
        context = task.context_bytes
        sizes = tokenizer.num_bytes() if context else []
        for number, ids in enumerate(tokenizer.encode(records.texts)):
            whole = [*start, *ids]
            ends = _ends([sizes[id] for id in whole], context, max_length) if context else None
            parts = _parts(whole, max_length, tokenizer.vocabulary.bos, ends)
            sequences += parts
            owner += [number] * len(parts)
            unknown.append(sum(size for _, size in tokenizer.unknown(records.texts[number], ids)))
        examples = join(sequences, np.zeros(len(sequences)), reads_start=False)
        return Scored(examples, np.ones(len(owner), np.int64), np.array(owner), unknown)

    def compressed(self, task: TextConfig, language: str) -> float | None:
        data = "\n\n".join(self.read(task.test[language], task, language, None).texts).encode()
        return 8 * len(lzma.compress(data, preset=9)) / len(data)


@dataclass(frozen=True)
class Parts(Documents):
    """Texts of words with a space between, and of each which words are hidden, (words,) bool."""

    hidden: list[np.ndarray]

    @property
    def num_bytes(self) -> int:
        """Of the hidden words, each with a space."""
        words = (
            zip(text.split(" "), own, strict=True)
            for text, own in zip(self.texts, self.hidden, strict=True)
        )
        return sum(
            len(word.encode()) + 1 for part in words for word, is_hidden in part if is_hidden
        )


class HiddenConfig(TaskConfig):
    """What a recipe says of documents with hidden words."""

    kind: Literal["pseudo-likelihood"]
    context_bytes: PositiveInt = 400
    """Bytes of a part, less than `max_length`."""

    @property
    def least_length(self) -> int:
        return self.context_bytes + 2  # a token is a byte at least


class Hidden(DocumentKind[HiddenConfig]):
    """Bits per byte of words that are hidden in documents, the same ones for every vocabulary.

    A word of several tokens is asked for from left to right, all of it and of the other hidden
    words masked but the tokens of it that were asked for: as many passes as the longest has tokens.
    """

    name = "pseudo-likelihood"
    config = HiddenConfig
    objective = "masked-lm"

    def read(self, path: str, task: HiddenConfig, language: str, labels: Labels) -> Parts:
        texts, bytes_of_part = [], task.context_bytes
        for document in super().read(path, task, language, labels).texts:
            by_byte = (
                " ".join(document.split()).encode().decode("latin-1")
            )  # textwrap counts characters
            parts = textwrap.wrap(
                by_byte, bytes_of_part, break_long_words=False, break_on_hyphens=False
            )
            texts += [
                part.encode("latin-1").decode() for part in parts if len(part) <= bytes_of_part
            ]
        keys = stream_key(sample_key(0, 0, np.arange(len(texts))), Stream.MASK_POSITIONS)
        sizes = [text.count(" ") + 1 for text in texts]
        hidden = [
            uniform(draws(key[None], 0, size))[0] < SHARE
            for key, size in zip(keys, sizes, strict=True)
        ]
        if not any(own.any() for own in hidden):
            raise UserError(f"{path}: too short for words to be hidden in it; give a longer text")
        return Parts(texts, hidden)

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Documents,
        task: HiddenConfig,
        max_length: int,
        separators: int = 2,
    ) -> Scored:
        """Each part between the tokens that begin and end a text, once for each token of its
        longest hidden word.
        """
        assert isinstance(records, Parts)
        mask, (before, after) = (
            tokenizer.vocabulary.require("mask", "a hidden word"),
            tokenizer.vocabulary.frame,
        )
        sequences, targets, owner, unknown = [], list[ArrayLike](), list[int](), list[int]()
        for number, (text, hidden) in enumerate(zip(records.texts, records.hidden, strict=True)):
            ids, spans = tokenizer.encode_with_offsets(text)
            starts = np.flatnonzero([True, *(sign == " " for sign in text)])  # of the words
            words = np.searchsorted(starts, [start for start, _ in spans], side="right") - 1
            missing = tokenizer.unknown(text, ids)
            unknown.append(
                sum(
                    size
                    for at, size in missing
                    if hidden[np.searchsorted(starts, at, side="right") - 1]
                )
            )
            places = np.where(
                hidden[words], np.arange(len(ids)) - np.searchsorted(words, words), -1
            )  # in their word
            for place in range(places.max(initial=-1) + 1):
                shown, asked = (
                    np.where(places >= place, mask, ids),
                    np.where(places == place, ids, IGNORED),
                )
                sequences.append(np.array([*before, *shown, *after]))
                targets += [[IGNORED] * len(before), asked, [IGNORED] * len(after)]
                owner.append(number)
        examples = join(sequences, np.concatenate(targets), reads_start=False, per_token=True)
        return Scored(examples, np.zeros(len(owner), np.int64), np.array(owner), unknown)

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        from ds_minimodel.models.trainable import HiddenLikelihoods

        return HiddenLikelihoods(config, vocab_size)

    def score(
        self, task: HiddenConfig, language: str, records: Documents, encoded: Scored, logits: Logits
    ) -> Scores:
        """ "bits_per_hidden_byte"; "score" as of documents."""
        scores = super().score(task, language, records, encoded, logits)
        return {"score": scores["score"], "bits_per_hidden_byte": scores["bits_per_byte"]}


def _scored_after(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.scored_after is None else [tokenizer.scored_after]


def _ends(sizes: Sequence[int], context: int, max_length: int) -> list[int]:
    """Where parts of at most `context` bytes and `max_length` tokens end. sizes: bytes of each
    token.
    """
    ends, first, used = list[int](), 0, 0
    for place in range(1, len(sizes)):
        if place > first + 1 and (used + sizes[place] > context or place - first >= max_length):
            ends.append(place)
            first, used = place - 1, 0
        used += sizes[place]
    return [*ends, len(sizes)]


def _parts(
    ids: list[int], max_length: int, bos: int | None, ends: list[int] | None = None
) -> list[np.ndarray]:
    """`ids` in parts of at most `max_length`. Each but the first begins, as a sample of training
    does, with `bos`, or where there is none with the last id of the part before; that one is
    context, not scored again. ends: where parts end, if they are not to be as long as possible.
    """
    ends = ends or [*range(max_length, len(ids), max_length - 1), len(ids)]
    parts = [
        np.array(ids[first:end])
        for first, end in zip([0, *(end - 1 for end in ends)], ends, strict=False)
    ]
    if bos is not None:
        for part in parts[1:]:
            part[0] = bos
    return parts
