"""Vocabularies of other libraries: read into the form that our packs have, and written out of it.

Every vocabulary here has the special tokens at fairseq's ids (common/vocabulary.py). Of another library's, the ids
in that order are kept beside the vocabulary's file, so that the rows of its embeddings can be put in order too.
Tokens that were added to one come before <mask>, with the flags that say how they are found in a text; a unigram
vocabulary with such tokens is kept as a tokenizer.json, since SentencePiece treats spaces beside them otherwise.

A SentencePiece unigram model gives the same ids as the tokenizer of Hugging Face's that it becomes, but for two
things. Hugging Face's `Precompiled` normaliser loses a mark where a letter carries two that are written apart
(decomposed Unicode, as in NFD Vietnamese; normalise such text to NFC). And SentencePiece adds scores up in fp32, so a
tie of two segmentations may be broken differently ("....").
"""

from __future__ import annotations

import base64
import binascii
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ds_minimodel.bodies.hugging_face import Architecture
from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import BOS, EOS, MASK, NUM_SPECIAL, PAD, SPECIAL, UNK
from ds_minimodel.data.tokenizer import BYTE_OF_CHARACTER, JSON_FILE, UNIGRAM_FILE, WORD_START
from ds_minimodel.data.tokenizer_json import (
    ADVICE,
    READERS,
    SPECIAL_TOKENS,
    BertPreTokenizer,
    Bpe,
    ByteLevel,
    ByteLevelFile,
    Ids,
    Metaspace,
    Precompiled,
    Splitters,
    TokenizerFile,
    Unigram,
    UnigramFile,
    WhitespaceSplit,
    WordPiece,
    WordPieceFile,
    check_merges,
    kind_of,
    read_unigram,
)
from ds_minimodel.data.tokenizer_json import AddedToken as FileToken
from ds_minimodel.interop.tokenizer_settings import TokenizerSettings, check_spaces

SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
_BOS, _PAD, _EOS, _UNK = SPECIAL
_MODEL_SPECIAL = [_UNK, _BOS, _EOS]  # ids 0 to 2 of a SentencePiece model as XLM-R and CamemBERT have it
# By the tokenizer's own class: pieces that transformers puts in the place of the first of a model, and how many.
_BEFORE_PIECES: dict[str | None, tuple[list[tuple[str, float]], int]] = {
    "Camembert": ([("<s>NOTUSED", 0.0), (_PAD, 0.0), ("</s>NOTUSED", 0.0), (_UNK, 0.0), ("<unk>NOTUSED", -100.0)], 1)
}
_AS_XLM_R = [(token, 0.0) for token in SPECIAL], len(_MODEL_SPECIAL)
protobuf: Any = sentencepiece_model_pb2  # its classes are made at run time
_PIECE = protobuf.ModelProto.SentencePiece


@dataclass
class Vocabulary:
    """A foreign vocabulary as our packs have it: name and bytes of its file, and its ids in our order."""

    file_name: str
    data: bytes
    order: list[int]


def read_vocabulary(folder: Path, architecture: Architecture, separators: int) -> Vocabulary:
    """The Vocabulary of a Hugging Face folder; UserError where it has none or one that cannot be kept as it is."""
    path, model_path, pieces_path, words_path = (
        folder / name for name in (JSON_FILE, SENTENCEPIECE_FILE, "vocab.json", "vocab.txt")
    )
    if os.path.lexists(model_path):
        settings = TokenizerSettings.of(folder, architecture, separators, "Unigram")
        found = _unigram_from_transformers_model(model_path, settings)
        if not os.path.lexists(path):
            return found.vocabulary(model_path)
        beside = _unigram_from_tokenizer_json(path, settings)
        if beside.facts(beside.added) != found.facts(beside.added):
            raise UserError(f"{path}: not the vocabulary of {model_path.name} beside it; remove the wrong one")
        return (beside if beside.added else found).vocabulary(path)
    if os.path.lexists(path):
        kind = kind_of(path)
        if kind not in READERS:
            raise UserError(f"{path}: a {kind:.40} vocabulary; import-hf takes {', '.join(READERS)}")
        settings = TokenizerSettings.of(folder, architecture, separators, kind)
        if kind == "Unigram":
            return _unigram_from_tokenizer_json(path, settings).vocabulary(path)
        file, ids = READERS[kind](path)
        if isinstance(file, ByteLevelFile):
            settings.check_prefix(file.pre_tokenizer.add_prefix_space, path)
        if isinstance(file, WordPieceFile):
            settings.check_normalizer(file, path)
            if os.path.lexists(words_path) and _words(words_path) != file.model.vocab:
                raise UserError(f"{path}: not the vocabulary of {words_path.name} beside it; remove the wrong one")
        settings.check_frame(file.post_processor, ids, path)
        return _json_in_our_order(file, ids, settings.added(file.added_tokens, ids), path)
    if os.path.lexists(words_path):
        settings, ids = TokenizerSettings.of(folder, architecture, separators, "WordPiece"), _words(words_path)
        added = settings.added((), ids)
        model = WordPiece(unk_token="[UNK]", vocab=ids)
        words = WordPieceFile(
            added_tokens=[], normalizer=settings.normalizer, pre_tokenizer=BertPreTokenizer(), model=model
        )
        return _json_in_our_order(words, ids, added, words_path)
    if os.path.lexists(pieces_path) and os.path.lexists(folder / "merges.txt"):
        settings = TokenizerSettings.of(folder, architecture, separators, "BPE")
        ids = files.read_model(pieces_path, Ids, ADVICE)
        splitter = ByteLevel(type="ByteLevel", add_prefix_space=bool(settings.prefix))
        bpe = bpe_from_merges(ids, folder / "merges.txt")
        return byte_level_in_our_order(bpe, ids, splitter, pieces_path, settings.added((), ids))
    raise UserError(
        f"{folder}: no tokenizer; it must hold {SENTENCEPIECE_FILE}, {JSON_FILE}, vocab.txt, or vocab.json and "
        "merges.txt"
    )


def _words(path: Path) -> dict[str, int]:
    """{string: id} of a vocab.txt, a piece a line."""
    lines = _lines(path)
    while lines and not lines[-1]:
        lines.pop()
    ids = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
    if len(ids) < len(lines):
        raise UserError(f"{path}: a piece comes twice")
    return ids


def _lines(path: Path) -> list[str]:
    try:
        return read_file(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None


def read_file(path: Path) -> bytes:
    """The bytes of a vocabulary's file; UserError where that cannot be."""
    try:
        if not path.is_file():  # a named pipe would be waited for
            raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def tokenizer_of_pack(pack: Path, separators: int) -> tuple[Tokenizer, tuple[str, ...]]:
    """(The vocabulary of a language pack with <s> and </s> put around texts, spellings of its five special tokens).

    separators: between the texts of a pair, of which the second has token type 1 where there is one separator.
    """
    path = pack / JSON_FILE
    special: tuple[str, ...] = SPECIAL_TOKENS
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
        special = READERS[kind_of(path)](path)[0].special_tokens
    else:
        path = pack / UNIGRAM_FILE
        tokenizer = _unigram_to_hugging_face(path.read_bytes(), path)
    bos, eos, type = special[BOS], special[EOS], 1 if separators == 1 else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {' '.join([eos] * separators)} $B:{type} {eos}:{type}",
        special_tokens=[(bos, BOS), (eos, EOS)],
    )
    return tokenizer, special


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, special: Sequence[str], max_positions: int, separators: int
) -> None:
    """Write what `AutoTokenizer` reads; texts are cut at `max_positions` ids where a user asks for it."""
    (folder / JSON_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
    bos, pad, eos, unk, mask = special
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    files.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_positions,
            "bos_token": bos,
            "cls_token": bos,
            "eos_token": eos,
            "sep_token": eos,
            "pad_token": pad,
            "unk_token": unk,
            "mask_token": mask,
            "model_input_names": inputs if separators == 1 else [inputs[0], inputs[2]],
        },
    )


# Order of ids.


def _our_order(ids: dict[str, int], special: Sequence[str], where: Path) -> list[int]:
    """Ids of a Hugging Face vocabulary in the order of ours: four special tokens, the pieces, <mask>.

    ids: {string: id}, all of it. special: spellings of the five special tokens. Raises UserError where one is missing
    or ids are not 0 … n-1.
    """
    for token in special:
        if token not in ids:
            raise UserError(f"{where}: no {token} in the vocabulary; it must have {' '.join(special)}")
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{where}: the ids are not 0 … {len(ids) - 1}, each once")
    *first, mask = (ids[token] for token in special)
    return [*first, *(id for id in range(len(ids)) if id not in {*first, mask}), mask]


def _json_in_our_order(file: TokenizerFile, ids: dict[str, int], added: Sequence[FileToken], where: Path) -> Vocabulary:
    """A tokenizer.json with our order of ids. ids: of all strings, those of the added tokens too.

    added: beside the five special tokens. Tokens that the model itself does not have stay out of it, as a model may
    find pieces of its own in a text; then <mask> does too, so that it comes last.
    """
    order = _our_order(ids, file.special_tokens, where)
    strings = [""] * len(ids)
    for string, id in ids.items():
        strings[id] = string
    ours, mask = [strings[id] for id in order], file.special_tokens[-1]
    known = set(file.strings)
    if isinstance(file, ByteLevelFile):
        known_added = {token.content for token in added}
        for string in ours[NUM_SPECIAL:-1]:
            if string not in known_added and not BYTE_OF_CHARACTER.keys() >= set(string):
                raise UserError(f"{where}: {string!r:.60} is not a piece of a byte-level BPE")
    outside = [token.content for token in added if token.content not in known]
    if outside and ours[-1 - len(outside) : -1] != outside:
        raise UserError(f"{where}: the added token {outside[0]!r:.60} has an id below those of the vocabulary's pieces")
    mask_takes_space = {token.content: token.lstrip for token in file.added_tokens}.get(mask, file.mask_takes_space)
    tokenizer = Tokenizer.from_str(file.with_strings(ours[: -1 - len(outside)] if outside else ours).model_dump_json())
    tokenizer.decoder = _DECODERS[file.model.type]
    _add_special_tokens(tokenizer, file.special_tokens[:-1])
    for token in added:
        flags = token.model_dump(exclude={"id"})
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([AddedToken(**flags)])
    tokenizer.add_special_tokens([AddedToken(mask, special=True, normalized=False, lstrip=mask_takes_space)])
    assert [tokenizer.token_to_id(string) for string in ours] == [*range(len(ours))]
    return Vocabulary(JSON_FILE, tokenizer.to_str().encode(), order)


_DECODERS: dict[str, Any] = {
    "BPE": decoders.ByteLevel(),
    "Unigram": decoders.Metaspace(WORD_START, prepend_scheme="always"),
    "WordPiece": decoders.WordPiece("##"),
}


def _add_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> None:
    """Let a Hugging Face tokenizer whose model has these special tokens find them in text."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])


# SentencePiece's unigram models.


def _parse_unigram(data: bytes, where: Path) -> Any:
    """The SentencePiece model (protobuf) in `data`; UserError for a kind that is not supported."""
    try:
        model = protobuf.ModelProto.FromString(data)
    except DecodeError as error:
        raise UserError(f"{where}: not a SentencePiece model ({error})") from None
    kinds = {piece.type for piece in model.pieces} - {_PIECE.NORMAL, _PIECE.CONTROL, _PIECE.UNKNOWN}
    spec = model.trainer_spec
    if spec.model_type != protobuf.TrainerSpec.UNIGRAM or kinds or spec.treat_whitespace_as_suffix:
        raise UserError(
            f"{where}: only SentencePiece models of type unigram, without bytes, own symbols or spaces after "
            "words, are supported"
        )
    if not all(math.isfinite(piece.score) for piece in model.pieces):
        raise UserError(f"{where}: a score is NaN or infinite")
    if not all(isinstance(piece.piece, str) for piece in model.pieces):  # protobuf gives bytes that it cannot decode
        raise UserError(f"{where}: a piece is not UTF-8")
    try:
        if model.normalizer_spec.precompiled_charsmap:
            normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    except Exception as error:  # the Rust library raises nothing narrower
        raise UserError(f"{where}: damaged precompiled_charsmap ({error})") from None
    return model


def _parse_special(data: bytes, where: Path) -> Any:
    """The SentencePiece model in `data`; UserError where its special pieces are not XLM-R's."""
    model = _parse_unigram(data, where)
    if [piece.piece for piece in model.pieces if piece.type != _PIECE.NORMAL] != _MODEL_SPECIAL:
        raise UserError(f"{where}: its special pieces must be {' '.join(_MODEL_SPECIAL)}, as in XLM-R's model")
    return model


def unigram_pieces(data: bytes) -> list[str]:
    """The strings of a SentencePiece model's ids."""
    return [piece.piece for piece in protobuf.ModelProto.FromString(data).pieces]


@dataclass
class _Unigram:
    """A unigram vocabulary: as a SentencePiece model, as a tokenizer.json, and what was added to it."""

    model: bytes
    file: UnigramFile
    ids: dict[str, int]  # of all strings
    added: list[FileToken]

    def vocabulary(self, where: Path) -> Vocabulary:
        if self.added:
            return _json_in_our_order(self.file, self.ids, self.added, where)
        return Vocabulary(UNIGRAM_FILE, self.model, _our_order(self.ids, SPECIAL_TOKENS, where))

    def facts(self, added: Sequence[FileToken]) -> tuple[Any, ...]:
        """What decides the ids of a text without `added` tokens."""
        model, left_out = protobuf.ModelProto.FromString(self.model), {token.content for token in added}
        ids = {string: id for string, id in self.ids.items() if string not in left_out}
        pieces = {piece.piece: piece.score for piece in model.pieces if piece.piece not in left_out}
        return pieces, ids, model.normalizer_spec.precompiled_charsmap


def _unigram_from_transformers_model(path: Path, settings: TokenizerSettings) -> _Unigram:
    """The sentencepiece.bpe.model of a Hugging Face folder, with the ids that the tokenizer's class gives."""
    data = read_file(path)
    model = _parse_special(data, path)
    before, left_out = _BEFORE_PIECES.get(settings.own_class, _AS_XLM_R)
    listed = [*before, *((piece.piece, piece.score) for piece in model.pieces[left_out:]), (MASK, 0.0)]
    ids = {piece: id for id, (piece, _) in enumerate(listed)}
    pieces = [(piece, score) for piece, score in listed if piece not in SPECIAL_TOKENS]
    for id, (piece, _) in enumerate(listed):
        if ids[piece] != id:
            raise UserError(f"{path}: {piece} is a piece of text too; a special token must be nothing else")
    ours = _unigram_model(pieces, model.normalizer_spec, path)
    _check_cuts(ours, path)
    settings.check_prefix(True, path)
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    file = UnigramFile(
        added_tokens=[],
        normalizer=Precompiled(type="Precompiled", precompiled_charsmap=charsmap),
        pre_tokenizer=Splitters(
            type="Sequence",
            pretokenizers=[WhitespaceSplit(type="WhitespaceSplit"), Metaspace(type="Metaspace", replacement="▁")],
        ),
        model=Unigram(unk_id=ids[_UNK], vocab=listed),
    )
    return _Unigram(ours, file, ids, settings.added((), ids))


def _unigram_from_tokenizer_json(path: Path, settings: TokenizerSettings) -> _Unigram:
    """A tokenizer.json's unigram model, and the same as a SentencePiece model in fairseq's order."""
    file, ids = read_unigram(path)
    settings.check_prefix(True, path)
    settings.check_frame(file.post_processor, ids, path)
    added = settings.added(file.added_tokens, ids)
    _our_order(ids, SPECIAL_TOKENS, path)
    spec = protobuf.NormalizerSpec(add_dummy_prefix=True, remove_extra_whitespaces=True, escape_whitespaces=True)
    charsmap = check_spaces(file, path)
    try:
        spec.precompiled_charsmap = base64.b64decode(charsmap or "", validate=True)
    except binascii.Error as error:
        raise UserError(f"{path}: damaged precompiled_charsmap ({error})") from None
    pieces = [(piece, score) for piece, score in file.model.vocab if piece not in SPECIAL_TOKENS]
    data = _unigram_model(pieces, spec, path)
    _check_cuts(data, path, at_any_white_space=len(file.splitters) > 1)
    return _Unigram(data, file, ids, added)


def _check_cuts(data: bytes, where: Path, at_any_white_space: bool = True) -> None:
    """UserError where Hugging Face's tokenizer, which cuts a text into words first, gives other ids than the model."""
    across = [piece for piece in unigram_pieces(data) if WORD_START in piece[1:]]
    if across:
        raise UserError(f"{where}: the piece {across[0]!r:.60} holds {WORD_START} after its start")
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    if at_any_white_space and model.normalize("a\tb") != f"{WORD_START}a{WORD_START}b":
        raise UserError(f"{where}: its normaliser keeps white space, at which Hugging Face's tokenizer cuts")


def _unigram_model(pieces: Sequence[tuple[str, float]], normalizer_spec: Any, where: Path) -> bytes:
    """A SentencePiece model of the special tokens and `pieces`, (string, score) each, serialised."""
    twice = {*SPECIAL, MASK} & {piece for piece, _ in pieces}
    if twice:  # which SentencePiece does not mind
        raise UserError(f"{where}: {min(twice)} is a piece of text too; a special token must be nothing else")
    trainer = protobuf.TrainerSpec(
        model_type=protobuf.TrainerSpec.UNIGRAM,
        vocab_size=NUM_SPECIAL + len(pieces),
        bos_id=BOS,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
    )
    model = protobuf.ModelProto(trainer_spec=trainer, normalizer_spec=normalizer_spec)
    for id, token in enumerate(SPECIAL):
        model.pieces.add(piece=token, score=0, type=_PIECE.UNKNOWN if id == UNK else _PIECE.CONTROL)
    for piece, score in pieces:
        model.pieces.add(piece=piece, score=score)
    data = model.SerializeToString()
    _parse_unigram(data, where)  # a score that fp32 cannot hold has become infinite
    try:
        sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{where}: SentencePiece cannot load this vocabulary ({reason})") from None
    return data


def _unigram_to_hugging_face(data: bytes, where: Path) -> Tokenizer:
    """A pack's tokenizer.model as a `tokenizers.Tokenizer` that gives the same ids, <mask> included.

    Raises UserError where SentencePiece's settings have no counterpart.
    """
    model = _parse_unigram(data, where)
    spec = model.normalizer_spec
    if not (spec.add_dummy_prefix and spec.remove_extra_whitespaces and spec.escape_whitespaces):
        raise UserError(
            f"{where}: a SentencePiece model without dummy prefix or that keeps white space cannot be exported"
        )
    vocabulary = [(piece.piece, piece.score) for piece in model.pieces] + [(MASK, 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=UNK, byte_fallback=False))
    spaces = [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    charsmap = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    tokenizer.normalizer = normalizers.Sequence([*charsmap, *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    _add_special_tokens(tokenizer, SPECIAL)
    tokenizer.add_special_tokens([AddedToken(MASK, special=True, normalized=False, lstrip=True)])
    return tokenizer


# RoBERTa's byte-level BPE, as Hugging Face writes it.


def bpe_from_merges(vocab: dict[str, int], path: Path) -> Bpe:
    """The model of {string: id} and a file of merges, one pair a line."""
    lines = _lines(path)
    model = Bpe(vocab=vocab, merges=[line for line in lines if line and not line.startswith("#version")])
    check_merges(model, path)
    return model


def byte_level_in_our_order(
    model: Bpe, ids: dict[str, int], splitter: ByteLevel, where: Path, added: Sequence[FileToken] = ()
) -> Vocabulary:
    """A byte-level BPE with our order of ids. ids: of all strings, those of the added tokens too.

    Raises UserError where it has not RoBERTa's special tokens, or pieces that are not bytes.
    """
    return _json_in_our_order(ByteLevelFile(added_tokens=[], pre_tokenizer=splitter, model=model), ids, added, where)
