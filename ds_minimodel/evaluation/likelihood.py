"""Likelihood of texts: bits per byte of documents, or with a masked body those of hidden words.

Nothing is finetuned. Bytes are those of the raw text, so that vocabularies compare.
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

CONTEXT_BYTES = 600  # before a token, from which it is predicted by default
HIDDEN_SHARE = 0.15  # of the words


@dataclass(frozen=True)
class Scored(Encoded):
    """N sequences whose tokens are scored.

    Attributes:
        first: (N,), position of the first token that is scored.
        text: (N,), index of the text that a sequence is of.
        unknown: (texts,), how many of each text's bytes the vocabulary has no piece for.
    """

    first: np.ndarray
    text: np.ndarray
    unknown: Sequence[int]

    def nats(self, logits: Logits) -> np.ndarray:
        """Sum the negative log-likelihoods of each text's tokens.

        An unknown byte takes 8 bits, as if it were spelt out.

        Args:
            logits: Log-likelihoods (B, S) of batches.

        Returns:
            Nats of each text, (texts,).
        """
        nats = math.log(256) * np.array(self.unknown, dtype=np.float64)
        lengths = self.examples.lengths
        for index, likelihoods_BS in logits:
            positions = np.arange(likelihoods_BS.shape[1])
            is_scored = (positions >= self.first[index, None]) & (positions < lengths[index, None])
            sums = np.where(is_scored, likelihoods_BS, 0).sum(1, dtype=np.float64)
            np.add.at(nats, self.text[index], -sums)
        return nats


class LikelihoodKind(TaskKind[R, Scored, C]):
    """Kind of task that asks how likely tokens are."""

    objective = "causal-lm"
    has_labels = False
    reads_start = False

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return a model of how likely each token is by those before it."""
        from ds_minimodel.models.trainable import TokenLikelihoods

        return TokenLikelihoods(config, vocab_size)


@dataclass(frozen=True)
class Documents:
    """Texts whose bits are counted."""

    texts: list[str]

    @property
    def num_bytes(self) -> int:
        """Count of bytes by which the bits are divided."""
        return sum(len(text.encode()) for text in self.texts)


class DocumentKind(LikelihoodKind[Documents, C]):
    """Kind of task that counts the bits of documents.

    Empty lines stand between documents, as in text to train on.
    """

    def read(self, path: str, task: C, language: str, labels: Labels) -> Documents:
        """Read the documents of one file of text."""
        return Documents(["\n".join(document) for document in read_documents([path])])

    def score(
        self, task: C, language: str, records: Documents, encoded: Scored, logits: Logits
    ) -> Scores:
        """Return "bits_per_byte", and as "score" the bytes in 100 bits: more is better."""
        bits = float(encoded.nats(logits).sum()) / math.log(2) / records.num_bytes
        return {"score": 100 / bits, "bits_per_byte": bits}

    def metric(self, task: C) -> str:
        """Return the name of bytes in 100 bits."""
        return "bytes in 100 bits (100 / bits per byte)"


class TextConfig(TaskConfig):
    """Section of a recipe for documents whose bits are counted."""

    kind: Literal["bits-per-byte"]
    context_bytes: NonNegativeInt = 0
    """Bytes of a part. 0, the default without `base`: parts of `max_length` tokens."""

    @property
    def min_length(self) -> int:
        """Shortest `max_length` at which any example can be encoded."""
        # A token is a byte at least.
        return max(super().min_length, self.context_bytes)

    @model_validator(mode="after")
    def _vocabularies_compare(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get("base") and not self.context_bytes:
            raise ValueError("give context_bytes, by which the base's tokens and new ones compare")
        return self


class Text(DocumentKind[TextConfig]):
    """Bits per byte of documents.

    Vocabularies compare at equal bytes of context: as many tokens hold more text where pieces are
    longer.
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
        """Encode each document after the tokenizer's `scored_after`.

        What is longer than `max_length` tokens, or has more than `context_bytes` bytes, becomes
        parts that begin as samples of training do.
        """
        start = [] if tokenizer.scored_after is None else [tokenizer.scored_after]
        context = task.context_bytes
        sizes = tokenizer.num_bytes() if context else []
        sequences: list[np.ndarray] = []
        text_indices: list[int] = []
        unknown: list[int] = []
        for text_index, ids in enumerate(tokenizer.encode(records.texts)):
            whole = [*start, *ids]
            if context:
                ends = _ends([sizes[id] for id in whole], context, max_length)
            else:
                ends = [*range(max_length, len(whole), max_length - 1), len(whole)]
            parts = _parts(whole, ends, tokenizer.vocabulary.bos)
            sequences += parts
            text_indices += [text_index] * len(parts)
            missing = tokenizer.unknown(records.texts[text_index], ids)
            unknown.append(sum(size for _, size in missing))
        return Scored(
            examples=join(sequences, np.zeros(len(sequences)), reads_start=False),
            first=np.ones(len(sequences), np.int64),
            text=np.array(text_indices),
            unknown=unknown,
        )

    def compressed(self, task: TextConfig, language: str) -> float | None:
        """Return the bits per byte of the test file by xz."""
        documents = self.read(task.test[language], task, language=language, labels=None)
        data = "\n\n".join(documents.texts).encode()
        return 8 * len(lzma.compress(data, preset=9)) / len(data)


@dataclass(frozen=True)
class Parts(Documents):
    """Texts with hidden words.

    Attributes:
        texts: Words with a space between them.
        hidden: Which words of each text are hidden, (words,) bool.
    """

    hidden: list[np.ndarray]

    @property
    def num_bytes(self) -> int:
        """Count of bytes of the hidden words, each with a space."""
        total = 0
        for text, hidden in zip(self.texts, self.hidden, strict=True):
            for word, is_hidden in zip(text.split(" "), hidden, strict=True):
                if is_hidden:
                    total += len(word.encode()) + 1
        return total


class HiddenConfig(TaskConfig):
    """Section of a recipe for documents with hidden words."""

    kind: Literal["pseudo-likelihood"]
    context_bytes: PositiveInt = 400
    """Bytes of a part, less than `max_length`."""

    @property
    def min_length(self) -> int:
        """Shortest `max_length` at which any example can be encoded."""
        # A token is a byte at least; one begins and one ends the part.
        return self.context_bytes + 2


class Hidden(DocumentKind[HiddenConfig]):
    """Bits per byte of words that are hidden in documents, the same ones for every vocabulary.

    The tokens of a word are asked for from left to right. All hidden words are masked but for the
    tokens of a word that have been asked for. So there are as many passes as the longest hidden
    word has tokens.
    """

    name = "pseudo-likelihood"
    config = HiddenConfig
    objective = "masked-lm"

    def read(self, path: str, task: HiddenConfig, language: str, labels: Labels) -> Parts:
        """Read the parts of a file's documents, and hide the same words of them every time."""
        texts: list[str] = []
        for document in read_documents([path]):
            # textwrap counts characters, so each byte is made one.
            bytes_as_text = " ".join(" ".join(document).split()).encode().decode("latin-1")
            parts = textwrap.wrap(
                bytes_as_text,
                task.context_bytes,
                break_long_words=False,
                break_on_hyphens=False,
            )
            # A word that is longer than a part is left out.
            fitting = [part for part in parts if len(part) <= task.context_bytes]
            texts += [part.encode("latin-1").decode() for part in fitting]
        keys = stream_key(sample_key(0, 0, np.arange(len(texts))), Stream.MASK_POSITIONS)
        hidden: list[np.ndarray] = []
        for text, key in zip(texts, keys, strict=True):
            num_words = text.count(" ") + 1
            hidden.append(uniform(draws(key[None], 0, num_words))[0] < HIDDEN_SHARE)
        if not any(is_hidden.any() for is_hidden in hidden):
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
        """Encode each part once for each token of its longest hidden word.

        It stands between the tokens that begin and end a text.
        """
        assert isinstance(records, Parts)
        mask = tokenizer.vocabulary.require("mask", "a hidden word")
        before, after = tokenizer.vocabulary.frame
        sequences: list[np.ndarray] = []
        targets: list[ArrayLike] = []
        text_indices: list[int] = []
        unknown: list[int] = []
        for text_index, text in enumerate(records.texts):
            is_hidden = records.hidden[text_index]
            word_starts = np.flatnonzero([True, *(sign == " " for sign in text)])
            ids, spans = tokenizer.encode_with_offsets(text)
            token_starts = [start for start, _ in spans]
            # The word that each token is of, and the token's index in it; -1 where it is shown.
            words = np.searchsorted(word_starts, token_starts, side="right") - 1
            first_of_word = np.searchsorted(words, words)
            in_word = np.arange(len(ids)) - first_of_word
            in_hidden = np.where(is_hidden[words], in_word, -1)
            missing = 0
            for start, size in tokenizer.unknown(text, ids):
                if is_hidden[np.searchsorted(word_starts, start, side="right") - 1]:
                    missing += size
            unknown.append(missing)
            for asked in range(in_hidden.max(initial=-1) + 1):
                shown = np.where(in_hidden >= asked, mask, ids)
                answers = np.where(in_hidden == asked, ids, IGNORED)
                sequences.append(np.array([*before, *shown, *after]))
                targets += [[IGNORED] * len(before), answers, [IGNORED] * len(after)]
                text_indices.append(text_index)
        return Scored(
            examples=join(sequences, np.concatenate(targets), reads_start=False, per_token=True),
            first=np.zeros(len(sequences), np.int64),
            text=np.array(text_indices),
            unknown=unknown,
        )

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return a model of how likely each masked token is."""
        from ds_minimodel.models.trainable import HiddenLikelihoods

        return HiddenLikelihoods(config, vocab_size)

    def score(
        self, task: HiddenConfig, language: str, records: Documents, encoded: Scored, logits: Logits
    ) -> Scores:
        """Return "bits_per_hidden_byte", and "score" as of documents."""
        scores = super().score(task, language, records=records, encoded=encoded, logits=logits)
        return {"score": scores["score"], "bits_per_hidden_byte": scores["bits_per_byte"]}


def _ends(sizes: Sequence[int], context: int, max_length: int) -> list[int]:
    """Return where parts of at most `context` bytes and `max_length` tokens end.

    The last token of a part is also the first of the next one. Its bytes do not count there.

    Args:
        sizes: Bytes of each token.
        context: Most bytes of a part.
        max_length: Most tokens of a part.
    """
    ends: list[int] = []
    first = 0
    used = 0
    for index in range(1, len(sizes)):
        is_full = used + sizes[index] > context or index - first >= max_length
        # A token of more bytes than these has a part all the same.
        if is_full and index > first + 1:
            ends.append(index)
            first = index - 1
            used = 0
        used += sizes[index]
    return [*ends, len(sizes)]


def _parts(ids: list[int], ends: list[int], bos: int | None) -> list[np.ndarray]:
    """Cut `ids` into parts.

    Each but the first begins, as a sample of training does, with `bos`, or where there is none with
    the last id of the part before, which is context and is not scored again.
    """
    starts = [0, *(end - 1 for end in ends[:-1])]
    parts = [np.array(ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    if bos is not None:
        for part in parts[1:]:
            part[0] = bos
    return parts
