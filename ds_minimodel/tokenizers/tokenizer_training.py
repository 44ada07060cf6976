"""Training of a vocabulary on text: unigram by SentencePiece, byte-level BPE by Hugging Face's
library.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.progress import Progress
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.text.reader import read_documents
from ds_minimodel.tokenizers.tokenizer import (
    JSON_FILE,
    SPECIAL,
    UNIGRAM_FILE,
    Tokenizer,
    TokenizerJson,
    trained_layout,
)


def train_tokenizer(
    text: Sequence[str | Path],
    out: str | Path,
    vocab_size: int,
    character_coverage: float,
    input_sentences: int,
    label: str = "tokenizer",
    kind: str = "unigram",
    base: Tokenizer | None = None,
) -> None:
    """Train a vocabulary of `vocab_size` ids, special tokens included, into the artifact folder
    `out`.

    `text` are paths or globs. At most `input_sentences` of its lines, sampled over all of it, are
    held in memory. The result is a function of the text and the arguments: lines are sampled with a
    fixed seed. character_coverage: share of the text's characters that get pieces (unigram; the
    others are byte-level). label: of the progress that is shown. kind: "unigram" or "byte-bpe".
    base: the tokenizer whose special tokens the vocabulary has and, where both are byte-level, by
    which text is cut into words.

    Raises UserError where the text cannot fill so large a vocabulary or needs a larger one.
    """
    special = base.special if base else SPECIAL
    where = ", ".join(map(str, text))
    lines = _Lines(text, label, special.values())
    name = UNIGRAM_FILE if kind == "unigram" else JSON_FILE
    if kind == "unigram":
        data, vocabulary = _train_unigram(
            lines, where, vocab_size, special, character_coverage, input_sentences
        )
    else:
        data, vocabulary = _train_byte_bpe(lines, where, vocab_size, special, base, input_sentences)
    with files.atomic_folder(out) as folder:
        (folder / name).write_bytes(data)
        how = {"character_coverage": character_coverage, "input_sentences": input_sentences}
        files.write_manifest(folder, kind="tokenizer", **vocabulary.facts(), **how)


def _too_large(vocab_size: int, most: int, where: str) -> UserError:
    return UserError(
        f"tokenizer.vocab_size={vocab_size}: the text ({where}) supports at most {most}, and has "
        "most of these too seldom to learn them; take a fifth of that, or add text"
    )


def _no_line(where: str) -> UserError:
    return UserError(
        f"{where}: no line that a vocabulary can be made of; text has a sentence or paragraph a "
        "line, and more than white space"
    )


class _Lines:
    """The lines of a text, one at a time, without special tokens; keeps the error that ended them,
    if one did.
    """

    def __init__(self, text: Sequence[str | Path], label: str, special: Iterable[str]):
        self._documents = read_documents(text)
        self._progress = Progress(label, None, "lines")
        self._special = re.compile("|".join(map(re.escape, special)))
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for document in self._documents:
                for line in filter(str.strip, document):
                    yield self._special.sub(" ", line)  # so that no piece of text is spelt as one
                    self._progress.update(self._progress.done + 1)
            self._progress.close("all read: tokens are made of them")
        except UserError as error:
            self.error = error
            raise


# Unigram. The mask token stands after the pieces.

# SentencePiece leaves out longer lines; its default is 4192.
_MAX_LINE_BYTES = 1 << 16
# A part of a longer line, which ends at white space where there is some.
_PART = re.compile(r"(?s).{1,16000}(?:\s|$)|.{1,16000}")
_LOSS_OF_UNIGRAM = "it normalises text, and what has no token is unknown to it"


def _train_unigram(
    lines: _Lines,
    where: str,
    vocab_size: int,
    special: dict[str, str],
    character_coverage: float,
    input_sentences: int,
) -> tuple[bytes, Vocabulary]:
    """The model's bytes and its layout. where: the text, in messages."""
    special = {"unk": SPECIAL["unk"], **special}
    model = io.BytesIO()
    vocabulary = trained_layout(vocab_size, special, _LOSS_OF_UNIGRAM)
    mask = special.pop("mask", None)
    size = vocab_size - (mask is not None)
    tokens: dict[str, Any] = {
        f"{role}_id": vocabulary.special.get(role, -1) for role in SPECIAL if role != "mask"
    }
    tokens |= {f"{role}_piece": string for role, string in special.items()}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(
                part
                for line in lines
                for part in (
                    [line] if len(line.encode()) <= _MAX_LINE_BYTES else _PART.findall(line)
                )
            ),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=character_coverage,
            input_sentence_size=input_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            **tokens,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise lines.error or _explain(str(error), where, vocab_size, vocab_size - size) from error
    return model.getvalue() + (b"" if mask is None else _last_piece(mask)), vocabulary


def _last_piece(string: str) -> bytes:
    """What, appended to a SentencePiece model, is a last piece: a control token, which its trainer
    would put first.

    A model is a message of Protocol Buffers, of which field 1 is a piece; a piece has its string in
    field 1, its type in field 3, where 3 is control.
    """

    def field_1(data: bytes) -> bytes:
        return b"\x0a" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data

    return field_1(field_1(string.encode()) + b"\x18\x03")


def _explain(message: str, where: str, vocab_size: int, uncounted: int) -> UserError:
    """The error to raise for SentencePiece's message, in our terms. uncounted: ids that it does not
    count.
    """
    most = re.search(r"Vocabulary size too high .*value <= (\d+)", message)
    if most:
        return _too_large(vocab_size, int(most[1]) + uncounted, where)
    least = re.search(r"Vocabulary size is smaller than required_chars. \d+ vs (\d+)", message)
    if least:
        return UserError(
            f"tokenizer.vocab_size={vocab_size}: the text ({where}) has so many characters that it "
            f"needs at least {int(least[1]) + uncounted}; raise it or lower "
            "tokenizer.character_coverage"
        )
    if "!sentences_.empty()" in message or "all_chars_count" in message:
        return _no_line(where)
    return UserError(f"{where}: SentencePiece cannot train on this text ({message})")


# Byte-level BPE, of the same layout.

# Without a base, GPT-4's words, but that marks belong to their letters: \p{L} alone parts Hindi at
# each vowel sign.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT: dict[str, Any] = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}
# Longer words are trained on in parts: time grows with the square of a word's length.
_LONG_WORD = re.compile(r"\S{2048}|\s{2048}")


def _train_byte_bpe(
    text: Iterable[str],
    where: str,
    vocab_size: int,
    special: dict[str, str],
    base: Tokenizer | None,
    sentences: int,
) -> tuple[bytes, Vocabulary]:
    """As _train_unigram. base: as of train_tokenizer."""
    vocabulary = trained_layout(vocab_size, special)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(vocabulary.special_ids) + len(alphabet)
    if vocab_size < least:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size}: a byte-level vocabulary has at least {least}, the "
            "bytes and the special tokens; raise it"
        )
    strings = {
        vocabulary.special[role]: string
        for role, string in sorted(special.items())
        if role != "mask"
    }
    empty = json.loads(tokenizers.Tokenizer(models.BPE()).to_str())
    split = {"pre_tokenizer": (base.split if base else None) or _SPLIT}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**empty, **split}))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - ("mask" in special),
        min_frequency=2,
        special_tokens=[strings[id] for id in sorted(strings)],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    lines = _sample(
        (part for line in text for part in _LONG_WORD.sub("\\g<0>\n", line).split("\n")), sentences
    )
    if not any(map(str.strip, lines)):
        raise _no_line(where)
    tokenizer.train_from_iterator(lines, trainer)
    if "mask" in special:
        takes_space = base.mask_takes_space if base else True
        tokenizer.add_special_tokens([tokenizers.AddedToken(special["mask"], lstrip=takes_space)])
    if tokenizer.get_vocab_size() < vocab_size:
        raise _too_large(vocab_size, tokenizer.get_vocab_size(), where)
    data = tokenizer.to_str()
    roundtrip_counterexample = TokenizerJson(Path(JSON_FILE), json.loads(data)).lost_text(
        vocabulary
    )
    return data.encode(), replace(vocabulary, roundtrip_counterexample=roundtrip_counterexample)


def _sample(lines: Iterable[str], most: int) -> list[str]:
    """At most so many of the lines, each as likely as the others."""
    draw = random.Random(0)
    kept = list[str]()
    for number, line in enumerate(lines):
        if number < most:
            kept.append(line)
        elif (place := int(draw.random() * (number + 1))) < most:
            kept[place] = line
    return kept
