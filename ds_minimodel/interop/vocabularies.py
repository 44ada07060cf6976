"""Vocabularies of other libraries: read into the form that our packs have, and written out of it.

Every vocabulary here has the special tokens at fairseq's ids (common/vocabulary.py). Of another library's, the ids
in that order are kept beside the vocabulary's file, so that the rows of its embeddings can be put in order too.

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

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import BOS, EOS, MASK, NUM_SPECIAL, PAD, SPECIAL, UNK
from ds_minimodel.data.tokenizer import BYTE_LEVEL_FILE, BYTE_OF_CHARACTER, UNIGRAM_FILE, WORD_START
from ds_minimodel.data.tokenizer_json import (
    ADVICE,
    Bpe,
    ByteLevel,
    ByteLevelFile,
    Ids,
    check_merges,
    kind_of,
    read_byte_level,
    read_unigram,
)
from ds_minimodel.interop.tokenizer_settings import TokenizerSettings, check_spaces

SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
_BOS, _PAD, _EOS, _UNK = SPECIAL
_XLMR_SPECIAL = [_UNK, _BOS, _EOS]  # ids 0 to 2 of XLM-R's SentencePiece model
protobuf: Any = sentencepiece_model_pb2  # its classes are made at run time
_PIECE = protobuf.ModelProto.SentencePiece


@dataclass
class Vocabulary:
    """A foreign vocabulary as our packs have it: name and bytes of its file, and its ids in our order."""

    file_name: str
    data: bytes
    order: list[int]


def read_vocabulary(folder: Path) -> Vocabulary:
    """The Vocabulary of a Hugging Face folder; UserError where it has none or one that cannot be kept as it is."""
    settings = TokenizerSettings.of(folder)
    path, model_path, pieces_path = (folder / name for name in (BYTE_LEVEL_FILE, SENTENCEPIECE_FILE, "vocab.json"))
    if os.path.lexists(model_path):
        found = Vocabulary(UNIGRAM_FILE, *unigram_from_sentencepiece(read_file(model_path), model_path))
        _check_cuts(found.data, model_path)
        settings.check_prefix(True, model_path)
        if os.path.lexists(path) and not _same_unigram(found, _unigram_from_tokenizer_json(path, settings)):
            raise UserError(f"{path}: not the vocabulary of {model_path.name} beside it; remove the wrong one")
        settings.check_ids(dict(zip([*unigram_pieces(found.data), MASK], found.order, strict=True)))
        return found
    if os.path.lexists(path):
        kind = kind_of(path)
        if kind == "Unigram":
            return _unigram_from_tokenizer_json(path, settings)
        if kind != "BPE":
            raise UserError(
                f"{path}: a {kind:.40} vocabulary; import-hf takes XLM-R's unigram and RoBERTa's byte-level BPE"
            )
        file, ids = read_byte_level(path)
        settings.check_prefix(file.pre_tokenizer.add_prefix_space, path)
        settings.check_frame(file.post_processor, ids, path)
        settings.check_ids(ids)
        takes_space = {token.content: token.lstrip for token in file.added_tokens}.get(MASK, True)
        return byte_level_in_our_order(file.model, ids, file.pre_tokenizer, path, takes_space)
    if os.path.lexists(pieces_path) and os.path.lexists(folder / "merges.txt"):
        ids = files.read_model(pieces_path, Ids, ADVICE)
        settings.check_ids(ids)
        splitter = ByteLevel(type="ByteLevel", add_prefix_space=bool(settings.prefix))
        return byte_level_in_our_order(bpe_from_merges(ids, folder / "merges.txt"), ids, splitter, pieces_path)
    raise UserError(
        f"{folder}: no tokenizer; it must hold {SENTENCEPIECE_FILE}, {BYTE_LEVEL_FILE}, or vocab.json and merges.txt"
    )


def read_file(path: Path) -> bytes:
    """The bytes of a vocabulary's file; UserError where that cannot be."""
    try:
        if not path.is_file():  # a named pipe would be waited for
            raise UserError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def tokenizer_of_pack(pack: Path) -> Tokenizer:
    """The vocabulary of a language pack as a `tokenizers.Tokenizer`, with <s> and </s> put around texts."""
    path = pack / BYTE_LEVEL_FILE
    if path.is_file():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        path = pack / UNIGRAM_FILE
        tokenizer = _unigram_to_hugging_face(path.read_bytes(), path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A {_EOS}", pair=f"{_BOS} $A {_EOS} {_EOS} $B {_EOS}", special_tokens=[(_BOS, BOS), (_EOS, EOS)]
    )
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, max_positions: int) -> None:
    """Write what `AutoTokenizer` reads; texts are cut at `max_positions` ids where a user asks for it."""
    (folder / BYTE_LEVEL_FILE).write_text(tokenizer.to_str(), encoding="utf-8")
    files.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_positions,
            "bos_token": _BOS,
            "cls_token": _BOS,
            "eos_token": _EOS,
            "sep_token": _EOS,
            "pad_token": _PAD,
            "unk_token": _UNK,
            "mask_token": MASK,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    )


# Order of ids.


def _our_order(ids: dict[str, int], where: Path) -> list[int]:
    """Ids of a Hugging Face vocabulary in the order of ours: four special tokens, the pieces, <mask>.

    ids: {string: id}, all of it. Raises UserError where a special token is missing or ids are not 0 … n-1.
    """
    for token in (*SPECIAL, MASK):
        if token not in ids:
            raise UserError(f"{where}: no {token} in the vocabulary; it must have the tokens of RoBERTa")
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{where}: the ids are not 0 … {len(ids) - 1}, each once")
    special = {ids[token] for token in (*SPECIAL, MASK)}
    return [*(ids[token] for token in SPECIAL), *(id for id in range(len(ids)) if id not in special), ids[MASK]]


def _add_special_tokens(tokenizer: Tokenizer, mask_takes_space: bool = True) -> Tokenizer:
    """Let a Hugging Face tokenizer whose model has the special tokens find them in text.

    mask_takes_space: <mask> takes the white space before it, as in the published RoBERTa and XLM-R.
    """
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_special_tokens([AddedToken(MASK, special=True, normalized=False, lstrip=mask_takes_space)])
    return tokenizer


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


def unigram_from_sentencepiece(data: bytes, where: Path) -> tuple[bytes, list[int]]:
    """XLM-R's sentencepiece.bpe.model as (model in fairseq's order: bytes, XLM-R's ids in that order).

    <pad> is added. The order is XLM-R's own, whose ids are SentencePiece's plus 1. Raises UserError for other
    kinds of model.
    """
    model = _parse_unigram(data, where)
    if [piece.piece for piece in model.pieces if piece.type != _PIECE.NORMAL] != _XLMR_SPECIAL:
        raise UserError(f"{where}: its special pieces must be {' '.join(_XLMR_SPECIAL)}, as in XLM-R's model")
    pieces = [(piece.piece, piece.score) for piece in model.pieces[len(_XLMR_SPECIAL) :]]
    return _unigram_model(pieces, model.normalizer_spec, where), list(range(NUM_SPECIAL + len(pieces) + 1))


def unigram_pieces(data: bytes) -> list[str]:
    """The strings of a SentencePiece model's ids."""
    return [piece.piece for piece in protobuf.ModelProto.FromString(data).pieces]


def _unigram_from_tokenizer_json(path: Path, settings: TokenizerSettings) -> Vocabulary:
    """A tokenizer.json's unigram model as a SentencePiece model in fairseq's order."""
    file, ids = read_unigram(path)
    settings.check_prefix(True, path)
    settings.check_frame(file.post_processor, ids, path)
    settings.check_ids(ids)
    order = _our_order(ids, path)
    spec = protobuf.NormalizerSpec(add_dummy_prefix=True, remove_extra_whitespaces=True, escape_whitespaces=True)
    charsmap = check_spaces(file, path)
    try:
        spec.precompiled_charsmap = base64.b64decode(charsmap or "", validate=True)
    except binascii.Error as error:
        raise UserError(f"{path}: damaged precompiled_charsmap ({error})") from None
    data = _unigram_model([file.model.vocab[id] for id in order[NUM_SPECIAL:-1]], spec, path)
    _check_cuts(data, path, at_any_white_space=len(file.splitters) > 1)
    return Vocabulary(UNIGRAM_FILE, data, order)


def _check_cuts(data: bytes, where: Path, at_any_white_space: bool = True) -> None:
    """UserError where Hugging Face's tokenizer, which cuts a text into words first, gives other ids than the model."""
    across = [piece for piece in unigram_pieces(data) if WORD_START in piece[1:]]
    if across:
        raise UserError(f"{where}: the piece {across[0]!r:.60} holds {WORD_START} after its start")
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    if at_any_white_space and model.normalize("a\tb") != f"{WORD_START}a{WORD_START}b":
        raise UserError(f"{where}: its normaliser keeps white space, at which Hugging Face's tokenizer cuts")


def _same_unigram(one: Vocabulary, other: Vocabulary) -> bool:
    """Whether two unigram vocabularies give the same ids."""
    models = [protobuf.ModelProto.FromString(vocabulary.data) for vocabulary in (one, other)]
    facts = [
        ([(piece.piece, piece.score) for piece in model.pieces], model.normalizer_spec.precompiled_charsmap)
        for model in models
    ]
    return one.order == other.order and facts[0] == facts[1]


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
    return _add_special_tokens(tokenizer)


# RoBERTa's byte-level BPE, as Hugging Face writes it.


def bpe_from_merges(vocab: dict[str, int], path: Path) -> Bpe:
    """The model of {string: id} and a file of merges, one pair a line."""
    try:
        lines = read_file(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from None
    model = Bpe(vocab=vocab, merges=[line for line in lines if line and not line.startswith("#version")])
    check_merges(model, path)
    return model


def byte_level_in_our_order(
    model: Bpe, ids: dict[str, int], splitter: ByteLevel, where: Path, mask_takes_space: bool = True
) -> Vocabulary:
    """A byte-level BPE with our order of ids. ids: of all strings, those of the added tokens too.

    Raises UserError where it has not RoBERTa's special tokens, or pieces that are not bytes.
    """
    order = _our_order(ids, where)
    strings = {id: string for string, id in ids.items()}
    for id in order[NUM_SPECIAL:-1]:
        if not BYTE_OF_CHARACTER.keys() >= set(strings[id]):
            raise UserError(f"{where}: {strings[id]!r:.60} is not a piece of a byte-level BPE")
    content = ByteLevelFile(
        added_tokens=[],
        pre_tokenizer=splitter,
        model=model.model_copy(update={"vocab": {strings[id]: number for number, id in enumerate(order)}}),
    )
    tokenizer = Tokenizer.from_str(content.model_dump_json())
    tokenizer.decoder = decoders.ByteLevel()
    return Vocabulary(BYTE_LEVEL_FILE, _add_special_tokens(tokenizer, mask_takes_space).to_str().encode(), order)
