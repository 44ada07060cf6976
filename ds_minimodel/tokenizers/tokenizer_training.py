"""Vocabularies are trained on text: unigram by SentencePiece, byte-level BPE by Hugging Face."""

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
    kind: str = "unigram",
    base: Tokenizer | None = None,
) -> None:
    """Train a vocabulary on text.

    The result is a function of the text and the arguments: lines are sampled with a fixed seed.

    Args:
        text: paths or globs.
        out: the artifact folder to write.
        vocab_size: how many ids there are, special tokens included.
        character_coverage: the share of the text's characters that get pieces (unigram; byte-level
            vocabularies cover all).
        input_sentences: how many lines, sampled over all of the text, are held in memory at most.
        kind: "unigram" or "byte-bpe".
        base: the tokenizer whose special tokens the vocabulary has and, where both are byte-level,
            by which text is cut into words.

    Raises:
        UserError: the text cannot fill so large a vocabulary, or needs a larger one.
    """
    special = base.special if base else SPECIAL
    lines = _Lines(text, f"tokenizer {Path(out).name}", special.values())
    if kind == "unigram":
        name = UNIGRAM_FILE
        data, vocabulary = _train_unigram(
            lines, vocab_size, special, character_coverage, input_sentences=input_sentences
        )
    else:
        name = JSON_FILE
        data, vocabulary = _train_byte_bpe(
            lines, vocab_size, special, base, input_sentences=input_sentences
        )
    with files.atomic_folder(out) as folder:
        (folder / name).write_bytes(data)
        files.write_manifest(
            folder,
            kind="tokenizer",
            **vocabulary.facts(),
            character_coverage=character_coverage,
            input_sentences=input_sentences,
        )


def _too_large(vocab_size: int, max_size: int, source: str) -> UserError:
    return UserError(
        f"tokenizer.vocab_size={vocab_size}: the text ({source}) supports at most {max_size}, and "
        "has most of these too seldom to learn them; take a fifth of that, or add text"
    )


def _no_line(source: str) -> UserError:
    return UserError(
        f"{source}: has no line that a vocabulary can be made of; text has a sentence or paragraph "
        "a line, and more than white space"
    )


class _Lines:
    """The lines of a text, one at a time, without special tokens.

    Attributes:
        source: what messages call the text.
        error: the error that ended the lines, if one did.
    """

    def __init__(self, text: Sequence[str | Path], label: str, special: Iterable[str]):
        self.source = ", ".join(map(str, text))
        self.error: UserError | None = None
        self._documents = read_documents(text)
        self._progress = Progress(label, None, "lines")
        self._special = re.compile("|".join(map(re.escape, special)))

    def __iter__(self) -> Iterator[str]:
        try:
            for document in self._documents:
                for line in filter(str.strip, document):
                    # So that no piece of text is spelt as a special token.
                    yield self._special.sub(" ", line)
                    self._progress.update(self._progress.done + 1)
            self._progress.close("all read: tokens are made of them")
        except UserError as error:
            self.error = error
            raise


# SentencePiece leaves out longer lines; its default is 4192.
_MAX_LINE_BYTES = 1 << 16
# A part of a longer line, which ends at white space where there is some.
_PART = re.compile(r"(?s).{1,16000}(?:\s|$)|.{1,16000}")
_LOSS_OF_UNIGRAM = "it normalises text, and what has no token is unknown to it"


def _train_unigram(
    lines: _Lines,
    vocab_size: int,
    special: dict[str, str],
    character_coverage: float,
    *,
    input_sentences: int,
) -> tuple[bytes, Vocabulary]:
    """Return the model's bytes and its layout."""
    special = {"unk": SPECIAL["unk"], **special}
    vocabulary = trained_layout(vocab_size, special, _LOSS_OF_UNIGRAM)
    # SentencePiece's settings bos_id, bos_piece and so on; -1 is the id of a token that it leaves
    # out. It would put the mask token before the pieces, so that one is added when all is done.
    settings: dict[str, Any] = {}
    for role in SPECIAL:
        if role != "mask":
            settings[f"{role}_id"] = vocabulary.special.get(role, -1)
            if role in special:
                settings[f"{role}_piece"] = special[role]
    num_trained = vocab_size - 1 if "mask" in special else vocab_size
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(part for line in lines for part in _parts(line)),
            model_writer=model,
            model_type="unigram",
            vocab_size=num_trained,
            character_coverage=character_coverage,
            input_sentence_size=input_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            **settings,
            minloglevel=2,
        )
    except RuntimeError as error:
        if lines.error is not None:
            raise lines.error from error
        raise _explain(str(error), lines.source, vocab_size, num_trained) from error
    last = _last_piece(special["mask"]) if "mask" in special else b""
    return model.getvalue() + last, vocabulary


def _parts(line: str) -> list[str]:
    """Return a line in parts that SentencePiece takes."""
    if len(line.encode()) <= _MAX_LINE_BYTES:
        return [line]
    return _PART.findall(line)


def _last_piece(string: str) -> bytes:
    """Return what, appended to a SentencePiece model, is a last piece: a control token.

    A model is a message of Protocol Buffers, of which field 1 is a piece; a piece has its string in
    field 1, its type in field 3, where 3 is control.
    """

    def field_1(data: bytes) -> bytes:
        # Its key, its length of up to 14 bits in two bytes, and its data.
        return b"\x0a" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data

    return field_1(field_1(string.encode()) + b"\x18\x03")


def _explain(message: str, source: str, vocab_size: int, num_trained: int) -> UserError:
    """Return the error that says SentencePiece's message in our terms.

    Args:
        message: what it says, where its vocabulary has `num_trained` ids.
        source: what messages call the text.
        vocab_size: how many ids were asked for.
        num_trained: how many of these SentencePiece counts.
    """
    others = vocab_size - num_trained
    too_high = re.search(r"Vocabulary size too high .*value <= (\d+)", message)
    if too_high:
        return _too_large(vocab_size, int(too_high[1]) + others, source)
    too_low = re.search(r"Vocabulary size is smaller than required_chars. \d+ vs (\d+)", message)
    if too_low:
        return UserError(
            f"tokenizer.vocab_size={vocab_size}: the text ({source}) has so many characters that "
            f"it needs at least {int(too_low[1]) + others}; raise it or lower "
            "tokenizer.character_coverage"
        )
    if "!sentences_.empty()" in message or "all_chars_count" in message:
        return _no_line(source)
    return UserError(f"{source}: SentencePiece cannot train on this text ({message})")


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
    lines: _Lines,
    vocab_size: int,
    special: dict[str, str],
    base: Tokenizer | None,
    *,
    input_sentences: int,
) -> tuple[bytes, Vocabulary]:
    """Return the bytes of a tokenizer.json and its layout."""
    vocabulary = trained_layout(vocab_size, special)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    min_size = len(vocabulary.special_ids) + len(alphabet)
    if vocab_size < min_size:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size}: a byte-level vocabulary has at least {min_size}, "
            "the bytes and the special tokens; raise it"
        )
    split = base.split if base else None
    content = json.loads(tokenizers.Tokenizer(models.BPE()).to_str())
    content["pre_tokenizer"] = split or _SPLIT
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.decoder = decoders.ByteLevel()
    # Special tokens get the first ids, but for the mask token, which is added behind the pieces.
    string_of_id = {
        vocabulary.special[role]: string for role, string in special.items() if role != "mask"
    }
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1 if "mask" in special else vocab_size,
        min_frequency=2,
        special_tokens=[string_of_id[id] for id in sorted(string_of_id)],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    parts = (part for line in lines for part in _LONG_WORD.sub("\\g<0>\n", line).split("\n"))
    sample = _sample(parts, input_sentences)
    if not any(map(str.strip, sample)):
        raise _no_line(lines.source)
    tokenizer.train_from_iterator(sample, trainer)
    if "mask" in special:
        takes_space = base.mask_takes_space if base else True
        tokenizer.add_special_tokens([tokenizers.AddedToken(special["mask"], lstrip=takes_space)])
    if tokenizer.get_vocab_size() < vocab_size:
        raise _too_large(vocab_size, tokenizer.get_vocab_size(), lines.source)
    data = tokenizer.to_str()
    counterexample = TokenizerJson(Path(JSON_FILE), json.loads(data)).lost_text(vocabulary)
    return data.encode(), replace(vocabulary, roundtrip_counterexample=counterexample)


def _sample(lines: Iterable[str], max_count: int) -> list[str]:
    """Return at most so many of the lines, each as likely as the others (reservoir sampling)."""
    draw = random.Random(0)
    sample: list[str] = []
    for index, line in enumerate(lines):
        if index < max_count:
            sample.append(line)
            continue
        slot = int(draw.random() * (index + 1))
        if slot < max_count:
            sample[slot] = line
    return sample
