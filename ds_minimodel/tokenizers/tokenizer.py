"""Tokenizers turn text into ids of one vocabulary, by SentencePiece or Hugging Face's library."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.vocabulary import Vocabulary, VocabularyManifest

# Characters at which vocabularies lose text: white space, those without width, controls, combining
# marks, characters that Unicode also composes from others, and punctuation.
_CHARACTERS = (
    "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\xad\u1680\u180e\u2000\u2003"
    "\u2007\u2009\u200a\u200b\u200c\u200d\u200e\u200f"
    "\u2028\u2029\u202a\u202e\u202f\u205f\u2060\u2063\u3000\ufeff\ufe0f"
    "\ufffc\ufffd\u0000\u0001\u0007\u007f\u009f"
    "\ue000\U000e0041\U0010fffd\u0301\u0308\u0323\u0345\u093c\u0e31\u1ab0\u20dd\u3099"
    "\ufe20\u00c5\u212b\u1e9b\u01c5"
    "_'\"-.,:;!?()[]{}<>/\\|@#$%^&*+=~`▁Ġ·•’“”«»、。，！"
)
# What stands around each of them in a probe.
_FRAMES = ("{0}", "a{0}b", "a {0} b", "é{0}", "日{0}{0}本")
# Lines of many languages and scripts, some in decomposed Unicode, of code and of special tokens
# spelt out.
_LINES = Path(__file__).with_name("probes.txt").read_text(encoding="utf-8").splitlines()
_DECOMPOSED = [
    "cafe\u0301 a\u0301\u0323 a\u0323\u0301 Tie\u0302\u0301ng Vie\u0323\u0302t",
    "\u1100\u1161\u11a8",
]
_SPACES = [
    "",
    " ",
    "   ",
    " a",
    "a ",
    "  a  b  ",
    "a\n\nb",
    "\n",
    "\r\n a\r\nb",
    "a\t \tb",
    " \n \t ",
    "a   .   b",
]

# Texts by which a vocabulary is tried: whether each comes back from its ids.
PROBES: list[str] = [
    *_LINES,
    *(word for line in _LINES for word in line.split()[:6]),
    *_DECOMPOSED,
    *_SPACES,
    *(frame.format(character) for character in _CHARACTERS for frame in _FRAMES),
    "a" * 99,
    "a" * 100,
    "a" * 101,
    "ж" * 250,
    "中" * 250,
]


UNIGRAM_FILE = "tokenizer.model"
JSON_FILE = "tokenizer.json"
# The file of transformers beside an imported vocabulary.
SETTINGS_FILE = "tokenizer_config.json"
# The folder of a model that has its vocabulary.
VOCABULARY = "tokenizer"
# How a piece spells the space before a word.
_TEXTS_AT_ONCE = 1 << 12  # that are encoded

WORD_START = "▁"
# Special tokens of a vocabulary that is trained here, where no base has others, in fairseq's order
# of the ids.
SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
# A piece that is spelt by its bytes.
BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")


def trained_layout(
    vocab_size: int,
    special: Mapping[str, str] = SPECIAL,
    roundtrip_counterexample: str | None = None,
) -> Vocabulary:
    """Return the layout of a vocabulary that is trained here: special tokens, pieces, mask token.

    Args:
        vocab_size: how many ids there are.
        special: {role: string}. RoBERTa's positions count from <pad>, which must therefore have
            the id 1. Roles may share a string, and then have one id.
        roundtrip_counterexample: as `Vocabulary` has it.
    """
    ids: dict[str, int] = {}
    for role in SPECIAL:
        if role in special and role != "mask":
            ids.setdefault(special[role], len(ids))
    if "mask" in special:
        ids[special["mask"]] = vocab_size - 1
    by_role: dict[str, Any] = {role: ids[string] for role, string in special.items()}
    return Vocabulary(vocab_size, **by_role, roundtrip_counterexample=roundtrip_counterexample)


class Tokenizer(ABC):
    """A tokenizer turns text into ids.

    No text can become a special id but the one of what is unknown: "<s>" or "<mask>" in it are
    ordinary characters.

    Attributes:
        vocabulary: its ids, and which are special.
        sha256: the hash of the vocabulary's file.
        mask_takes_space: whether the mask token takes the white space before it too.
        split: how a byte-level vocabulary parts text into words, as its file has it.
        drops: whether nothing stands for what is unknown.
        scored_after: the id after which a text is scored, as lm-evaluation-harness has it: that of
            the token called bos, whether or not one stands before texts, else eos.
    """

    file_name: str
    mask_takes_space = True
    split: dict[str, Any] | None = None
    drops = False
    scored_after: int | None

    def __init__(self, folder: str | Path):
        """Open the vocabulary in `folder`.

        Raises:
            UserError: its file is not the one that the manifest names.
        """
        self.path = Path(folder) / self.file_name
        manifest = files.read_artifact(folder, VocabularyManifest)
        self.vocabulary = manifest.vocabulary(folder)
        facts = manifest.files.get(self.file_name)
        if facts is None:
            raise UserError(
                f"{self.path}: no such file; {folder} holds another kind of vocabulary or none"
            )
        self.sha256 = files.sha256_of_file(self.path)
        if self.sha256 != facts.sha256:
            raise UserError(
                f"{self.path}: damaged (its SHA-256 is not the one in the manifest); "
                "delete the folder and make it again"
            )
        self.scored_after = self.vocabulary.start

    def _check_size(self, size: int) -> None:
        """Raise UserError where the vocabulary that the file holds has not the manifest's size."""
        if size != self.vocabulary.size:
            raise UserError(
                f"{self.path}: has {size} ids, where {files.MANIFEST} says {self.vocabulary.size}: "
                "it is the vocabulary of another folder"
            )

    @property
    def special(self) -> dict[str, str]:
        """The special tokens as {role: string}, as the vocabulary spells them."""
        return {role: self._string(id) for role, id in self.vocabulary.special.items()}

    @abstractmethod
    def _string(self, id: int) -> str:
        """Return how the file spells an id."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; nothing is put before or after them."""

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of one text and where in it each has its characters.

        White space before a word belongs to no piece; pieces that one character is made of share
        it. What a normaliser composes with a character, or takes off it, belongs to that
        character's pieces.

        Returns:
            (ids, for each its (start, end) in `text` as given).
        """
        ids, spans = self._encode_with_offsets(text)
        covered = {index for start, end in spans for index in range(start, end)}
        extended = []
        for start, end in spans:
            while (
                start < end < len(text)
                and end not in covered
                and _joins(text[start:end], text[end])
            ):
                end += 1
            extended.append((start, end))
        return ids, extended

    @abstractmethod
    def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Do the same, where a composed character may have the place of its first part alone."""

    def unknown(self, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return (index, UTF-8 bytes) of each visible character of `text` that no token covers.

        Args:
            text: any text.
            ids: what this tokenizer encodes it to.
        """
        if self.vocabulary.unk not in ids and not self.drops:
            return []
        known: set[int] = set()
        if self.drops:
            # Offsets of a vocabulary that drops characters are wrong, so each is encoded alone.
            ids_of_characters = self.encode(list(text))
            known.update(index for index, alone in enumerate(ids_of_characters) if alone)
        else:
            for id, span in zip(*self.encode_with_offsets(text), strict=True):
                if id != self.vocabulary.unk:
                    known.update(range(*span))
        return [
            (index, len(character.encode()))
            for index, character in enumerate(text)
            if index not in known and character.isprintable() and not character.isspace()
        ]

    @abstractmethod
    def pieces(self) -> list[str]:
        """Return the string of each id, all different.

        A piece of text has ▁ for a space, and a special token is spelt as it is. All kinds spell
        text the same way, so that the pieces that two vocabularies share are found by their
        strings.
        """

    def num_bytes(self) -> list[int]:
        """Return the UTF-8 bytes of the text that each id stands for.

        The space before a word counts. A special token with a role counts as it is spelt, another
        stands for no text.
        """
        return [_num_bytes(piece) for piece in self.pieces()]

    def cut(self, pieces: Sequence[str], *, extend_this: bool = False) -> list[list[int]]:
        """Return the ids that each piece of another vocabulary is cut into.

        A piece that is no whole number of characters is cut into its bytes, where this vocabulary
        has those.

        Args:
            pieces: strings, as the other's `pieces` has them.
            extend_this: whether the other extends this vocabulary; pieces that begin inside a word
                are then cut as they are inside one, not as words.
        """
        byte_ids = {piece: id for id, piece in enumerate(self.pieces()) if BYTES.fullmatch(piece)}
        texts = [
            "" if BYTES.fullmatch(piece) else piece.replace(WORD_START, " ") for piece in pieces
        ]
        cuts = self.encode(texts)
        for ids, piece in zip(cuts, pieces, strict=True):
            if not ids:
                ids += [byte_ids[byte] for byte in re.findall("<0x..>", piece) if byte in byte_ids]
        return cuts


def _num_bytes(piece: str) -> int:
    """Return the UTF-8 bytes of the text that a piece stands for."""
    if BYTES.fullmatch(piece):
        return len(piece) // len("<0x00>")
    return len(piece.replace(WORD_START, " ").encode())


def _joins(before: str, character: str) -> bool:
    """Return whether a character is a mark on the text before it, or composes with its end."""
    alone = unicodedata.normalize("NFKC", before)
    joined = unicodedata.normalize("NFKC", before + character)
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or len(joined) <= len(alone)


class UnigramTokenizer(Tokenizer):
    """A unigram vocabulary of SentencePiece."""

    file_name = UNIGRAM_FILE

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        with one_line(self.path, "not a SentencePiece model"):
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(self.path))
        self._check_size(self._model.get_piece_size())

    def _string(self, id: int) -> str:
        return self._model.id_to_piece(id)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return self._model.encode(texts, num_threads=1)

    def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # SentencePiece's normalisation (NFKC, runs of white space) may change the text; its offsets
        # are in the original. A piece that is nothing but a word's start is empty.
        encoded = self._model.encode(text, return_type="offset_mapping")
        offsets = encoded["offsets"]
        spans = []
        for index, (start, end) in enumerate(offsets):
            while start < end and text[start].isspace():
                start += 1
            # Of the pieces of one character only the last has an offset of some length: the others
            # share it.
            if start == end and encoded["pieces"][index] != WORD_START:
                end = next((later for _, later in offsets[index:] if later > start), start)
            spans.append((start, end))
        return encoded["ids"], spans

    def pieces(self) -> list[str]:
        """Return the string of each id, which SentencePiece spells as all kinds do."""
        return self._model.id_to_piece(list(range(self._model.get_piece_size())))


_MODELS = ("BPE", "Unigram", "WordPiece")


class JsonTokenizer(Tokenizer):
    """A vocabulary of Hugging Face's library: BPE, WordPiece or unigram.

    Imported models bring these, and they stay as they came; byte-level ones are trained here too.
    Added tokens that are not special are found in a text before the vocabulary is asked, as that
    library does.
    """

    file_name = JSON_FILE

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        # One thread, as SentencePiece's here: text is prepared by as many processes as there are
        # cores.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._file = TokenizerJson(self.path)
        self._tokenizer = self._file.runner(self.vocabulary)
        self._check_size(self._file.size)
        settings_path = self.path.with_name(SETTINGS_FILE)
        if settings_path.is_file():
            advice = "put the pack back from a copy"
            settings = files.read_model(settings_path, dict[str, Any], advice)
            for id, string in self._file.strings.items():
                if string == settings.get("bos_token"):
                    self.scored_after = id
        self.mask_takes_space = self.special.get("mask") in self._file.taking_space
        self.split = self._file.content.get("pre_tokenizer") if self._file.is_byte_level else None
        cuneiform = "\U00012000"
        self.drops = self.encode([cuneiform]) == [[]]
        # Each process that prepares text would keep it.
        self._file.content.clear()

    def _string(self, id: int) -> str:
        return self._file.strings[id]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text.

        Raises:
            UserError: the vocabulary names a token for what is unknown and has none.
        """
        ids: list[list[int]] = []
        # Beside the ids an encoding holds strings and places, many times their size.
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            part = list(texts[first : first + _TEXTS_AT_ONCE])
            try:
                encodings = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            # The library raises no kind of its own.
            except Exception as error:
                raise UserError(f"{self.path}: it cannot encode a text ({error})") from None
            ids += [encoding.ids for encoding in encodings]
        return ids

    def _encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = []
        for (start, end), token in zip(encoding.offsets, encoding.tokens, strict=True):
            while start < end and text[start].isspace():
                start += 1
            spans.append((start, start if token == WORD_START else end))
        return encoding.ids, spans

    def cut(self, pieces: Sequence[str], *, extend_this: bool = False) -> list[list[int]]:
        """Return the ids that each piece of another vocabulary is cut into."""
        if not extend_this or self._file.is_byte_level:
            return super().cut(pieces)
        if self._file.kind == "WordPiece":
            pieces = [
                piece[1:] if piece.startswith(WORD_START) else f"##{piece}" for piece in pieces
            ]
        return [[token.id for token in self._tokenizer.model.tokenize(piece)] for piece in pieces]

    def pieces(self) -> list[str]:
        """Return the string of each id; one whose spelling an earlier id has is <id N>."""
        special_ids = self.vocabulary.special_ids
        taken = {self._file.strings[id] for id in special_ids}
        pieces = []
        for id in range(self.vocabulary.size):
            if id in special_ids:
                pieces.append(self._file.strings[id])
                continue
            piece = self._file.spell(id)
            if piece in taken:
                piece = f"<id {id}>"
            taken.add(piece)
            pieces.append(piece)
        return pieces

    def num_bytes(self) -> list[int]:
        """Return the UTF-8 bytes of the text that each id stands for."""
        sizes = super().num_bytes()
        if self._file.is_byte_level:
            for id, string in self._file.strings.items():
                sizes[id] = len(string.encode() if string in self._file.added else string)
        # Special tokens without a role, such as those that end a turn.
        for id in self._file.special.keys() - {*self.vocabulary.special_ids}:
            sizes[id] = 0
        return sizes


_MAX_IDS = 1 << 24


class TokenizerJson:
    """A tokenizer.json, which may be damaged or be made to do harm.

    Attributes:
        content: what Hugging Face's library writes of it.
        strings: {id: string} of all ids.
        size: how many ids there are.
        kind: the kind of its model, one of `_MODELS`.
        added: the strings that are found in a text before the model is asked.
        special: {id: string} of those among them that no text holds.
        taking_space: those among them that take the white space before them.
        is_byte_level: whether the other pieces are made of GPT-2's characters, each a byte.
    """

    def __init__(self, path: Path, content: dict[str, Any] | None = None):
        """Read the file.

        Args:
            path: the file.
            content: what is to be there, where it is not read.

        Raises:
            UserError: Hugging Face's library does not take it.
        """
        self.path = path
        tokenizer = self.load(files.read_json(path) if content is None else content)
        self.content: dict[str, Any] = json.loads(tokenizer.to_str())
        self.kind: str = self.content["model"]["type"]
        self.strings = {id: string for string, id in tokenizer.get_vocab().items()}
        self.size = max(self.strings, default=-1) + 1
        if self.kind not in _MODELS or self.size > _MAX_IDS:
            raise UserError(
                f"{path}: holds a {self.kind} vocabulary of {self.size:,} ids; there are "
                f"{', '.join(_MODELS)} of at most {_MAX_IDS:,}"
            )
        self.added = {token["content"] for token in self.content["added_tokens"]}
        self.special = {
            token["id"]: token["content"]
            for token in self.content["added_tokens"]
            if token["special"]
        }
        self.taking_space = {
            token["content"] for token in self.content["added_tokens"] if token["lstrip"]
        }
        stages = json.dumps([self.content["pre_tokenizer"], self.content["decoder"]])
        self.is_byte_level = self.kind == "BPE" and '"ByteLevel"' in stages

    def load(self, content: dict[str, Any] | None = None) -> tokenizers.Tokenizer:
        """Return the tokenizer, or that of other content; texts are neither cut nor filled up."""
        with one_line(self.path, "not a tokenizer"):
            tokenizer = tokenizers.Tokenizer.from_str(
                json.dumps(content or self.content, ensure_ascii=False)
            )
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer

    def runner(self, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
        """Return the tokenizer by which no text becomes a special id.

        Raises:
            UserError: a special id has no token, or a text becomes one all the same.
        """
        missing = [id for id in vocabulary.special_ids if id not in self.strings]
        if missing:
            raise UserError(f"{self.path}: has no token of the id {missing[0]}")
        special = {id: self.strings[id] for id in vocabulary.special_ids} | self.special
        model = self.content["model"]
        added = self.content["added_tokens"]
        # A unigram model finds its pieces in a text whatever is set, but no text has a NUL.
        if self.kind == "Unigram":
            hidden = {*special.values()} & {piece for piece, _ in model["vocab"]}
            vocab = [
                (f"\0{piece}\0" if piece in hidden else piece, score)
                for piece, score in model["vocab"]
            ]
            model = {**model, "vocab": vocab}
            added = [token for token in added if token["content"] not in hidden]
        added = [{**token, "special": token["id"] in special} for token in added]
        runner = self.load({**self.content, "added_tokens": added, "model": model})
        runner.encode_special_tokens = True
        for token in added:
            # The library numbers added tokens on from the model's ids.
            if runner.token_to_id(token["content"]) != token["id"]:
                raise UserError(
                    f"{self.path}: added_tokens: {token['content']!r:.60} is not in the order of "
                    "the ids"
                )
        for id, string in special.items():
            with one_line(self.path, "not a tokenizer"):
                encodings = runner.encode_batch_fast(
                    [string, f"a {string} b", f"a{string}b"], add_special_tokens=False
                )
            if id != vocabulary.unk and any(id in encoding.ids for encoding in encodings):
                raise UserError(f"{self.path}: the text {string!r:.40} becomes the special id {id}")
        return runner

    def lost_text(self, vocabulary: Vocabulary) -> str | None:
        """Return a probe that does not come back from its ids, as messages say it, or None."""
        runner = self.runner(vocabulary)
        reader = self.load()
        with one_line(self.path, "not a tokenizer"):
            for text in PROBES:
                ids = runner.encode(text, add_special_tokens=False).ids
                decoded = reader.decode(ids, skip_special_tokens=False)
                if decoded != text:
                    num_equal = 0
                    while text[: num_equal + 1] == decoded[: num_equal + 1]:
                        num_equal += 1
                    start = max(0, num_equal - 1)
                    near = slice(start, start + 20)
                    return f"{text[near]!r} of a text comes back as {decoded[near]!r}"
        return None

    def spell(self, id: int) -> str:
        """Return the piece of text of an id, as all vocabularies spell it."""
        string = self.strings.get(id, f"<id {id}>")
        if string in self.added:
            return string.replace(" ", WORD_START)
        if self.is_byte_level and BYTE_OF_CHARACTER.keys() >= {*string}:
            return _spell_bytes(string)
        return _spell_word_piece(string) if self.kind == "WordPiece" else string


def _byte_of_character() -> dict[str, int]:
    """Return the byte that each of GPT-2's printable characters stands for.

    A printable Latin-1 character stands for its own byte, U+0100 … for the others in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


BYTE_OF_CHARACTER = _byte_of_character()


def _by_bytes(data: bytes) -> str:
    """Return the spelling of a piece that no text has: <0xE2><0x82>."""
    return "".join(f"<0x{byte:02X}>" for byte in data)


def _spell_bytes(string: str) -> str:
    """Return the text of a byte-level piece, or its bytes where it is no whole characters."""
    data = bytes(BYTE_OF_CHARACTER[character] for character in string)
    text = data.decode(errors="replace")
    if text.encode() != data or WORD_START in text:
        return _by_bytes(data)
    return text.replace(" ", WORD_START)


def _spell_word_piece(string: str) -> str:
    """Return the text of a piece of WordPiece, which marks those inside a word by ##."""
    if WORD_START in string:
        return _by_bytes(string.encode())
    if string.startswith("##") and string != "##":
        return string[2:]
    return WORD_START + string


def tokenizer_in(folder: str | Path) -> Path:
    """Return the folder of a model's vocabulary; an adaptation has it beside its embeddings."""
    inside = Path(folder) / VOCABULARY
    return inside if inside.is_dir() else Path(folder)


def open_tokenizer(folder: str | Path) -> Tokenizer:
    """Open the vocabulary in a folder: of a tokenizer, a language pack or a model.

    Raises:
        UserError: there is none.
    """
    folder = tokenizer_in(folder)
    names = files.read_artifact(folder, files.Manifest).files
    if UNIGRAM_FILE in names:
        return UnigramTokenizer(folder)
    if JSON_FILE in names:
        return JsonTokenizer(folder)
    raise UserError(
        f"{folder}: holds neither {UNIGRAM_FILE} nor {JSON_FILE}; it is not a tokenizer or a "
        "language pack"
    )
