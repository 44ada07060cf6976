"""SentencePiece's unigram models: in fairseq's order of ids, and as a tokenizer of Hugging Face's.

The two libraries give the same ids but for two things. Hugging Face's `Precompiled` normaliser loses a mark
where a letter carries two that are written apart (decomposed Unicode, as in NFD Vietnamese; normalise such
text to NFC). And SentencePiece adds scores up in fp32, so a tie of two segmentations may fall otherwise
("....").
"""

import base64
import binascii

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as protobuf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import BOS, EOS, MASK, PAD, UNK
from ds_minimodel.interop.special import FIRST, add_special_tokens, our_order

_WORD_START = "▁"
_XLMR_FIRST = ["<unk>", "<s>", "</s>"]  # ids 0 to 2 of its SentencePiece model
_PIECE = protobuf.ModelProto.SentencePiece


def _parse(data, where):
    try:
        model = protobuf.ModelProto.FromString(data)
    except DecodeError as error:
        raise UserError(f"{where}: not a SentencePiece model ({error})") from None
    kinds = {piece.type for piece in model.pieces} - {_PIECE.NORMAL, _PIECE.CONTROL, _PIECE.UNKNOWN}
    if model.trainer_spec.model_type != protobuf.TrainerSpec.UNIGRAM or kinds:
        raise UserError(
            f"{where}: only SentencePiece models of type unigram, without bytes or own symbols, are supported"
        )
    return model


def from_sentencepiece(data, where):
    """XLM-R's sentencepiece.bpe.model as (model in fairseq's order: bytes, XLM-R's ids in that order).

    <pad> is added. The order is XLM-R's own, whose ids are SentencePiece's plus 1. Raises UserError for other
    kinds of model.
    """
    model = _parse(data, where)
    if [piece.piece for piece in model.pieces if piece.type != _PIECE.NORMAL] != _XLMR_FIRST:
        raise UserError(f"{where}: its special pieces must be {' '.join(_XLMR_FIRST)}, as in XLM-R's model")
    pieces = [(piece.piece, piece.score) for piece in model.pieces[len(_XLMR_FIRST) :]]
    return _model(pieces, model.normalizer_spec, where), list(range(len(FIRST) + len(pieces) + 1))


def pieces(data):
    """The strings of a model's ids."""
    return [piece.piece for piece in protobuf.ModelProto.FromString(data).pieces]


def from_tokenizer_json(content, where):
    """A tokenizer.json's unigram model as (SentencePiece model in fairseq's order, ids in that order)."""
    vocabulary = content["model"]["vocab"]
    ids = {piece: id for id, (piece, _) in enumerate(vocabulary)}
    ids |= {token["content"]: token["id"] for token in content["added_tokens"]}
    order = our_order(ids, where)
    parts = content["normalizer"] or {"type": "Sequence", "normalizers": []}
    parts = parts["normalizers"] if parts["type"] == "Sequence" else [parts]
    others = {part["type"] for part in parts[1:]} | {part["type"] for part in parts[:1]} - {"Precompiled"}
    if others - {"Replace", "Strip"} or content["model"].get("byte_fallback"):
        raise UserError(f"{where}: not the tokenizer of a SentencePiece unigram model like XLM-R's")
    spec = protobuf.NormalizerSpec(add_dummy_prefix=True, remove_extra_whitespaces=True, escape_whitespaces=True)
    if parts and parts[0]["type"] == "Precompiled":
        try:
            spec.precompiled_charsmap = base64.b64decode(parts[0]["precompiled_charsmap"], validate=True)
        except binascii.Error as error:
            raise UserError(f"{where}: damaged precompiled_charsmap ({error})") from None
    return _model([tuple(vocabulary[id]) for id in order[len(FIRST) : -1]], spec, where), order


def _model(pieces, normalizer_spec, where):
    trainer = protobuf.TrainerSpec(
        model_type=protobuf.TrainerSpec.UNIGRAM,
        vocab_size=len(FIRST) + len(pieces),
        bos_id=BOS,
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
    )
    model = protobuf.ModelProto(trainer_spec=trainer, normalizer_spec=normalizer_spec)
    for id, token in enumerate(FIRST):
        model.pieces.add(piece=token, score=0, type=_PIECE.UNKNOWN if id == UNK else _PIECE.CONTROL)
    for piece, score in pieces:
        model.pieces.add(piece=piece, score=score)
    data = model.SerializeToString()
    try:
        sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise UserError(f"{where}: SentencePiece cannot load this vocabulary ({error})") from None
    return data


def to_hugging_face(data, where):
    """A pack's tokenizer.model as a `tokenizers.Tokenizer` that gives the same ids, <mask> included.

    Raises UserError where SentencePiece's settings have no counterpart.
    """
    model = _parse(data, where)
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
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_WORD_START, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(_WORD_START, prepend_scheme="always")
    return add_special_tokens(tokenizer)
