"""Tokenizers: text to the ids of one language's vocabulary, SentencePiece unigram, byte-level BPE or WordPiece."""

from __future__ import annotations

import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece
import tokenizers

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import (
    BOS,
    EOS,
    MASK,
    PAD,
    SPECIAL,
    UNK,
    Vocabulary,
    VocabularyManifest,
    mask_id,
    special_ids,
)
from ds_minimodel.data.reader import find_files, read_documents
from ds_minimodel.data.tokenizer_json import READERS, kind_of

UNIGRAM_FILE = "tokenizer.model"
JSON_FILE = "tokenizer.json"
WORD_START = "▁"  # how a piece spells the space before a word


class Tokenizer(ABC):
    """Text to ids and back. vocabulary: its ids, and which are special. sha256: of the vocabulary's file.

    No text can become a special id: "<s>" or "<mask>" in it are ordinary characters.
    """

    file_name: str
    vocab_size: int
    mask_id: int
    mask: str | None = MASK  # how the vocabulary spells its mask token

    def __init__(self, folder: str | Path):
        """Open the vocabulary in `folder`; UserError where its file is not the one that the manifest names."""
        self.path = Path(folder) / self.file_name
        manifest = files.read_artifact(folder, VocabularyManifest)
        self.vocabulary = manifest.vocabulary(folder)
        facts = manifest.files.get(self.file_name)
        if facts is None:
            raise UserError(f"{self.path}: no such file; {folder} holds another kind of vocabulary or none")
        self.sha256 = files.sha256_of_file(self.path)
        if self.sha256 != facts.sha256:
            raise UserError(
                f"{self.path}: damaged (its SHA-256 is not the one in the manifest); "
                "delete the folder and make it again"
            )

    def _check(self, held: Vocabulary) -> None:
        """UserError where the vocabulary that the file holds is not the one of the manifest."""
        if held != self.vocabulary:
            raise UserError(
                f"{self.path}: has {held.size} ids, of which {held.special} are special, where {files.MANIFEST} says "
                f"{self.vocabulary.size} and {self.vocabulary.special}: it is the vocabulary of another folder"
            )

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, a list of lists; nothing is put before or after them."""

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of one text and, for each, the (start, end) of its characters in `text` as given.

        White space before a word belongs to no piece; pieces that one character is made of share it.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; <s>, <pad>, </s> and <mask> are left out."""

    @abstractmethod
    def pieces(self) -> list[str]:
        """The string of each id, vocab_size in all, each different: text, with ▁ for a space.

        Both kinds spell them the same way, so that the pieces that two vocabularies share are found by their strings.
        """


# SentencePiece's unigram vocabularies, trained here or XLM-R's. <mask> stands after the last piece of the model.

_MAX_LINE_BYTES = 1 << 16  # SentencePiece leaves out longer lines; its own limit is 4192


class UnigramTokenizer(Tokenizer):
    """SentencePiece's unigram vocabulary."""

    file_name = UNIGRAM_FILE

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(self.path))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{self.path}: not a SentencePiece model ({str(error).partition(chr(10))[0]})") from None
        model = self._model
        found = model.bos_id(), model.pad_id(), model.eos_id(), model.unk_id()
        if found != (BOS, PAD, EOS, UNK):
            raise UserError(f"{self.path}: its {' '.join(SPECIAL)} have the ids {found}; another library made it")
        self.mask_id = self._model.get_piece_size()
        self.vocab_size = self.mask_id + 1
        self._check(trained_layout(self.vocab_size))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._model.encode(texts, num_threads=1)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # SentencePiece's normalisation (NFKC, runs of white space) may change the text; its offsets are in
        # the original. A piece that is nothing but a word's start is empty.
        encoded = self._model.encode(text, return_type="offset_mapping")
        spans, offsets = [], encoded["offsets"]
        for number, (start, end) in enumerate(offsets):
            while start < end and text[start].isspace():
                start += 1
            if start == end and encoded["pieces"][number] != WORD_START:
                end = next((later for _, later in offsets[number:] if later > start), start)
            spans.append((start, end))
        return encoded["ids"], spans

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode([int(id) for id in ids if UNK <= id < self.mask_id])

    def pieces(self) -> list[str]:
        return [self._model.id_to_piece(id) for id in range(self.mask_id)] + [MASK]


def trained_layout(vocab_size: int) -> Vocabulary:
    """The vocabulary of this many ids that is trained here: fairseq's order, with <mask> last."""
    return Vocabulary(vocab_size, bos=0, pad=1, eos=2, unk=3, mask=vocab_size - 1)


def train_tokenizer(
    text: Sequence[str | Path], out: str | Path, vocab_size: int, character_coverage: float, input_sentences: int
) -> None:
    """Train a vocabulary of `vocab_size` ids, <mask> included, into the artifact folder `out`.

    `text` are paths or globs of raw text. At most `input_sentences` of its lines, sampled over all of
    it, are held in memory. The result is a function of the text and the arguments (SentencePiece
    samples with a fixed seed).

    Raises UserError where the text cannot fill so large a vocabulary or needs a larger one.
    """
    lines = _Lines(text)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - 1,
            character_coverage=character_coverage,
            input_sentence_size=input_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_LINE_BYTES,
            bos_id=BOS,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            minloglevel=2,
        )
    except RuntimeError as error:
        if lines.error is None:
            raise _explain(str(error), text, vocab_size) from error
    if lines.error is not None:  # SentencePiece up to 0.2.0 takes an error for the end of the text
        raise lines.error
    with files.atomic_folder(out) as folder:
        (folder / UNIGRAM_FILE).write_bytes(model.getvalue())
        files.write_manifest(
            folder,
            kind="tokenizer",
            **trained_layout(vocab_size).facts(),
            character_coverage=character_coverage,
            input_sentences=input_sentences,
            text=[[path.name, path.stat().st_size] for path in find_files(text)],
        )


class _Lines:
    """The lines of a text, one at a time; keeps the error that ended them, if one did."""

    def __init__(self, text: Sequence[str | Path]):
        self._documents = read_documents(text)
        self.error: UserError | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for document in self._documents:
                for line in document:
                    yield line.replace(MASK, " ")  # so that no piece of text is spelt <mask>
        except UserError as error:
            self.error = error
            raise


def _explain(message: str, text: Sequence[str | Path], vocab_size: int) -> UserError:
    """The error to raise for SentencePiece's message, in our terms; it does not count <mask>."""
    where = ", ".join(map(str, text))
    most = re.search(r"Vocabulary size too high .*value <= (\d+)", message)
    if most:
        return UserError(
            f"tokenizer.vocab_size={vocab_size}: the text ({where}) supports at most "
            f"{int(most[1]) + 1}; lower it to that or add text"
        )
    least = re.search(r"Vocabulary size is smaller than required_chars. \d+ vs (\d+)", message)
    if least:
        return UserError(
            f"tokenizer.vocab_size={vocab_size}: the text ({where}) has so many characters "
            f"that it needs at least {int(least[1]) + 1}; raise it or lower "
            "tokenizer.character_coverage"
        )
    if "!sentences_.empty()" in message or "all_chars_count" in message:
        return UserError(
            f"{where}: no line that a vocabulary can be made of; text has a sentence or paragraph a line, of at most "
            f"{_MAX_LINE_BYTES:,} bytes, and more than white space"
        )
    return UserError(f"{where}: SentencePiece cannot train on this text ({message})")


# RoBERTa's byte-level BPE. In its file a piece is a string of stand-ins for bytes, one character each.


def _byte_of_character() -> dict[str, int]:
    """The byte that each of GPT-2's printable characters stands for.

    A printable Latin-1 character stands for its own byte, U+0100 … for the others in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + number): byte for number, byte in enumerate(others)},
    }


BYTE_OF_CHARACTER = _byte_of_character()


def _by_bytes(data: bytes) -> str:
    """The spelling of a piece that no text has: <0xE2><0x82>."""
    return "".join(f"<0x{byte:02X}>" for byte in data)


def _spell_bytes(string: str) -> str:
    """Text of a byte-level piece; one that is no whole number of characters is spelt by its bytes."""
    data = bytes(BYTE_OF_CHARACTER[character] for character in string)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    return _by_bytes(data) if text is None or WORD_START in text else text.replace(" ", WORD_START)


def _spell_word_piece(string: str) -> str:
    if WORD_START in string:
        return _by_bytes(string.encode())
    return string[2:] if string.startswith("##") and string != "##" else WORD_START + string


# Vocabularies of Hugging Face's library, in its own file: imported ones that are not as SentencePiece's here.

_SPELLINGS: dict[str, Callable[[str], str]] = {  # of a piece as text, by the kind of vocabulary
    "BPE": _spell_bytes,
    "Unigram": lambda string: string,
    "WordPiece": _spell_word_piece,
}


class JsonTokenizer(Tokenizer):
    """A byte-level BPE, BERT's WordPiece, or a unigram vocabulary with added tokens.

    Tokens that were added to it are found in a text before the vocabulary is asked, as that library does.
    """

    file_name = JSON_FILE

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        # One thread, as SentencePiece's here: text is prepared by as many processes as there are cores.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        kind = kind_of(self.path)
        if kind not in READERS:
            raise UserError(f"{self.path}: a {kind:.40} vocabulary; there are {', '.join(READERS)}")
        self._spell = _SPELLINGS[kind]
        file, ids = READERS[kind](self.path)
        self._strings = sorted(ids, key=ids.__getitem__)
        if [ids.get(token) for token in file.special_tokens] != special_ids(len(ids)):
            *first, mask = file.special_tokens
            raise UserError(f"{self.path}: {' '.join(first)} must be its first ids and {mask} its last")
        self._tokenizer = tokenizers.Tokenizer.from_str(file.without_special_tokens().model_dump_json())
        self._added = {token.content for token in file.added_tokens}
        for token in self._added.difference(file.special_tokens):
            if self._tokenizer.token_to_id(token) != ids[token]:  # the library chose other ids
                raise UserError(f"{self.path}: added_tokens: {token!r:.60} is not in the order of the ids")
        self.vocab_size = len(ids)
        self.mask_id = mask_id(self.vocab_size)
        self._check(trained_layout(self.vocab_size))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = []
        for (start, end), token in zip(encoding.offsets, encoding.tokens, strict=True):
            while start < end and text[start].isspace():
                start += 1
            spans.append((start, start if token == WORD_START else end))
        return encoding.ids, spans

    def decode(self, ids: Iterable[int]) -> str:
        # Halves of characters show as �.
        return self._tokenizer.decode([int(id) for id in ids if UNK < id < self.mask_id], skip_special_tokens=False)

    def pieces(self) -> list[str]:
        found = dict.fromkeys((*SPECIAL, MASK))
        for string in self._strings[len(SPECIAL) : -1]:
            piece = string.replace(" ", WORD_START) if string in self._added else self._spell(string)
            found[_by_bytes(string.encode()) if piece in found else piece] = None
        del found[MASK]
        return [*found, MASK]


def open_tokenizer(folder: str | Path) -> Tokenizer:
    """The vocabulary in a folder (a tokenizer or a language pack); UserError where there is none."""
    held = files.read_artifact(folder, files.Manifest).files
    if UNIGRAM_FILE in held:
        return UnigramTokenizer(folder)
    if JSON_FILE in held:
        return JsonTokenizer(folder)
    raise UserError(f"{folder}: holds neither {UNIGRAM_FILE} nor {JSON_FILE}; it is not a tokenizer or a language pack")
