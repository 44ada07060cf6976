"""Tokenizers of Hugging Face's folders: kept as they are, and written back; refused where two files disagree.

A folder may say in several files how its texts are cut, and each reader takes some of them: transformers' own class of
a model makes a tokenizer of the vocabulary and of tokenizer_config.json, its generic class takes tokenizer.json. What
is kept is tokenizer.json, or what transformers makes of older files. What the files state must agree, and where
transformers is installed, it must give the same ids, of the vocabulary and of texts in many scripts (probes.py).
"""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import sentencepiece
from google.protobuf.message import DecodeError
from pydantic import BeforeValidator, Field
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from ds_minimodel.bodies import BodyConfig
from ds_minimodel.bodies.hugging_face import Architecture
from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import Vocabulary, VocabularyManifest
from ds_minimodel.data.probes import PROBES
from ds_minimodel.data.tokenizer import JSON_FILE, UNIGRAM_FILE, WORD_START, TokenizerJson, without_standard_error

ADVICE = "an import keeps what the families have that docs/hugging-face.md names, and nothing else"
_OLDER_FILES = "vocab.txt", "vocab.json", "sentencepiece.bpe.model"
TOKENIZER_FILES = (  # all that are read
    JSON_FILE,
    *_OLDER_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_MOST_BYTES = 1 << 28  # of one of them
_FAIRSEQ = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
_BERT = {"bos": "[CLS]", "eos": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
# Classes of transformers that make a tokenizer of their own: (kind of vocabulary, special tokens by default). They put
# these around texts, whatever tokenizer.json says.
_OWN_CLASSES = {
    "Roberta": ("BPE", _FAIRSEQ),
    "XLMRoberta": ("Unigram", _FAIRSEQ),
    "Camembert": ("Unigram", _FAIRSEQ),
    "Bert": ("WordPiece", _BERT),
}
_GENERIC_CLASSES = "PreTrainedTokenizerFast", "TokenizersBackend"  # take tokenizer.json as it is
_ROLES = {"cls_token": "bos", "sep_token": "eos", "pad_token": "pad", "unk_token": "unk", "mask_token": "mask"}
_TEXT_ROLES = {"bos_token": "bos", "eos_token": "eos"}  # where cls_token and sep_token are not stated
protobuf: Any = sentencepiece_model_pb2  # its classes are made at run time
_PIECE = protobuf.ModelProto.SentencePiece
T = TypeVar("T")


def _token(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _tokens(tokens: Any) -> Any:
    tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
    return [_token(token) for token in tokens] if isinstance(tokens, list) else tokens


_Token = Annotated[str | None, BeforeValidator(_token)]
_Tokens = Annotated[list[str] | None, BeforeValidator(_tokens)]


class _Sampling(files.Stored):
    enable_sampling: Literal[False] = False


class _Settings(files.Stored):
    """Of tokenizer_config.json and special_tokens_map.json what changes the ids of a text."""

    tokenizer_class: str | None = None
    add_prefix_space: bool | None = None
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    bos_token: _Token = None
    cls_token: _Token = None
    pad_token: _Token = None
    eos_token: _Token = None
    sep_token: _Token = None
    unk_token: _Token = None
    mask_token: _Token = None
    additional_special_tokens: _Tokens = None
    extra_special_tokens: _Tokens = None
    added_tokens_decoder: dict[Annotated[str, Field(pattern="^[0-9]+$")], Annotated[str, BeforeValidator(_token)]] = {}
    sp_model_kwargs: _Sampling | None = None


def _settings(path: Path) -> _Settings:
    return files.read_model(path, _Settings, ADVICE) if os.path.lexists(path) else _Settings()


@dataclass(frozen=True)
class Kept:
    """A foreign tokenizer as a pack keeps it: the bytes of its tokenizer.json, and which of its ids are special."""

    data: bytes
    vocabulary: Vocabulary


def read_vocabulary(folder: Path, architecture: Architecture, body: BodyConfig) -> Kept:
    """The tokenizer of a Hugging Face folder; UserError where it has none or one that cannot be kept as it is.

    body: of the model, by which texts stand in a sequence.
    """
    path, config = folder / JSON_FILE, folder / "tokenizer_config.json"
    settings = _settings(config)
    name = settings.tokenizer_class or f"{architecture.tokenizer}Tokenizer"
    own = name.removesuffix("Fast").removesuffix("Tokenizer")
    if not _has_transformers() and own not in _OWN_CLASSES and name not in _GENERIC_CLASSES:
        raise UserError(f"{config}: tokenizer_class {name!r:.60} is not known; install transformers, which reads it")
    is_there = os.path.lexists(path)
    file = TokenizerJson(path) if is_there else _made_by_transformers(folder)
    data = path.read_bytes() if is_there else json.dumps(file.content, ensure_ascii=False).encode()
    if own in _OWN_CLASSES and _OWN_CLASSES[own][0] != file.kind:
        raise UserError(f"{config}: tokenizer_class: {own}Tokenizer does not read a {file.kind} vocabulary")
    _check_older_files(folder, file)
    vocabulary = _vocabulary(file, own, architecture, _stated(folder, file))
    _check_settings(file, settings, own, config)
    if body.causal and not _stands_as(file, vocabulary, body):
        vocabulary = replace(vocabulary, bos=None)  # a token that is named, but begins no text
    if not _stands_as(file, vocabulary, body):
        processor = (file.content.get("post_processor") or {}).get("type")
        if own not in _OWN_CLASSES or processor not in (None, "ByteLevel"):
            ids = [id for side in _frame(vocabulary, body) for id in side]
            where = f"between {' and '.join(file.strings[id] for id in ids)}" if ids else "alone"
            raise UserError(f"{path}: post_processor: texts must stand {where} as the model's do")
        data = _framed(file, vocabulary, body)
    runner = file.runner(vocabulary)
    if is_there and _has_transformers():
        special = [file.strings[id] for id in vocabulary.special_ids]  # which no text becomes here
        texts = [text for text in PROBES if not any(token in text for token in special)]
        _compare_with_transformers(file, runner, texts)
    return Kept(data, replace(vocabulary, lossy=file.loss(vocabulary)))


def _stated(folder: Path, file: TokenizerJson) -> dict[str, str]:
    """{key: token} of the special tokens that files beside the vocabulary name.

    UserError where they contradict each other, or have tokens at other ids than the vocabulary.
    """
    ids, special = file.ids, dict[str, str]()
    named: list[tuple[Path, str, int | str | None]] = []
    path = folder / "added_tokens.json"
    if os.path.lexists(path):
        named += [(path, token, id) for token, id in files.read_model(path, dict[str, files.Count], ADVICE).items()]
    for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        stated = _settings(path)
        named += [(path, token, id) for id, token in stated.added_tokens_decoder.items()]
        for key in (*_ROLES, *_TEXT_ROLES):
            token = getattr(stated, key)
            if token is not None and special.setdefault(key, token) != token:
                raise UserError(f"{path}: {key}: {token!r:.40} is not {special[key]!r:.40} as in tokenizer_config.json")
            named += [(path, token, None)] if token is not None else []
        named += [
            (path, token, None)
            for tokens in (stated.additional_special_tokens, stated.extra_special_tokens)
            for token in tokens or ()
        ]
    for path, token, id in named:
        if token not in ids:
            raise UserError(f"{path}: {token!r:.60} is not in the vocabulary of {file.path.name}")
        if id is not None and str(id) != str(ids[token]):
            raise UserError(f"{path}: {token!r:.60} has id {id!s:.40}, in the vocabulary {ids[token]}")
    return special


def _vocabulary(file: TokenizerJson, own: str, architecture: Architecture, stated: Mapping[str, str]) -> Vocabulary:
    """Which ids of `file` are special. stated: as of `_stated`."""
    ids = file.ids
    _, by_default = _OWN_CLASSES.get(own) or _OWN_CLASSES.get(architecture.tokenizer, ("", {}))
    spelt = {role: token for role, token in by_default.items() if own in _OWN_CLASSES or token in ids}
    for key, role in (*_TEXT_ROLES.items(), *_ROLES.items()):
        if key in stated and (key in _ROLES or role not in spelt):
            spelt[role] = stated[key]
    for role, token in spelt.items():
        if token not in ids:
            raise UserError(f"{file.path}: no {token} in the vocabulary, the {role} token of its class")
    found: dict[str, Any] = {role: ids[token] for role, token in spelt.items()}
    if found.get("pad") in (found.get("bos"), found.get("eos"), found.get("unk")):
        found.pop("pad", None)  # what ends a text fills it up too
    try:
        return Vocabulary(file.size, **found, name=str(file.path))
    except ValueError as error:
        raise UserError(f"{file.path}: {error}") from None


def _check_settings(file: TokenizerJson, settings: _Settings, own: str, config: Path) -> None:
    """UserError where `file` and what its class makes of tokenizer_config.json treat texts otherwise."""
    normalizer, splitter = file.content.get("normalizer") or {}, file.content.get("pre_tokenizer") or {}
    expected: dict[str, Any] = {}
    if settings.add_prefix_space is not None or own == "Roberta":
        expected["add_prefix_space"] = bool(settings.add_prefix_space)
    if own == "Bert":
        expected |= {"lowercase": settings.do_lower_case, "strip_accents": settings.strip_accents}
        expected |= {"handle_chinese_chars": settings.tokenize_chinese_chars}
    for key, value in expected.items():
        found = normalizer.get(key, splitter.get(key, value))
        if found != value:
            raise UserError(
                f"{file.path}: {key} {json.dumps(found)}, but {config.name} makes it {json.dumps(value)}; let both say "
                "the same"
            )


def _has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def _made_by_transformers(folder: Path) -> TokenizerJson:
    """What transformers makes of a folder without tokenizer.json; UserError where it does not."""
    found = [folder / name for name in _OLDER_FILES if os.path.lexists(folder / name)]
    if not found:
        raise UserError(f"{folder}: no tokenizer; it must hold {JSON_FILE}, or {' or '.join(_OLDER_FILES)}")
    path = found[0]
    if not _has_transformers():
        raise UserError(f"{folder}: has no {JSON_FILE}; install transformers, by which it is made of {path.name}")
    for needed in [path, *([folder / "merges.txt"] if path.name == "vocab.json" else [])]:
        _read(needed)
    made = _by_transformers(path, lambda tokenizer: tokenizer.backend_tokenizer.to_str())
    return TokenizerJson(path, json.loads(made))


def _check_older_files(folder: Path, file: TokenizerJson) -> None:
    """UserError where a piece of an older file is not one of `file`, or has another id or score there."""
    for path in (folder / name for name in _OLDER_FILES if os.path.lexists(folder / name)):
        data = _read(path)
        found: Mapping[str, float] = file.ids
        older: Mapping[str, float]
        try:
            if path.name == "vocab.txt":
                lines = data.decode().removesuffix("\n").split("\n")
                older = {line.removesuffix("\r"): id for id, line in enumerate(lines)}
            elif path.name == "vocab.json":
                older = files.read_model(path, dict[str, int], ADVICE)
            else:
                model = sentencepiece.SentencePieceProcessor(model_proto=data)
                older = {model.id_to_piece(id): model.get_score(id) for id in range(model.get_piece_size())}
                found = dict(file.content["model"]["vocab"]) if file.kind == "Unigram" else {}
        except (UnicodeDecodeError, RuntimeError) as error:
            raise UserError(f"{path}: not a vocabulary ({str(error).partition(chr(10))[0]:.200})") from None
        for piece, value in older.items():
            if not math.isclose(found.get(piece, math.nan), value, rel_tol=1e-6):
                raise UserError(
                    f"{path}: {piece!r:.60} is not as in {JSON_FILE} or as transformers reads it; remove the wrong one"
                )


def _read(path: Path) -> bytes:
    """The bytes of an older file; UserError where that cannot be, as it is a pipe or larger than any vocabulary."""
    try:
        if not path.is_file() or not 0 < path.stat().st_size <= _MOST_BYTES:
            raise UserError(f"{path}: no such file, or not a file that holds a vocabulary")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _compare_with_transformers(file: TokenizerJson, runner: Tokenizer, texts: list[str]) -> None:
    """UserError where `file` has other ids than transformers, or its `runner` gives others of `texts`."""
    theirs, of_theirs = _by_transformers(
        file.path, lambda tokenizer: (tokenizer.get_vocab(), tokenizer(texts, add_special_tokens=False)["input_ids"])
    )
    ids = file.ids
    for token in {**theirs, **ids}:
        if ids.get(token) != theirs.get(token):
            raise UserError(f"{file.path}: {token!r:.60} has id {ids.get(token)}, to transformers {theirs.get(token)}")
    with file.refusing():
        of_ours = [encoding.ids for encoding in runner.encode_batch(texts, add_special_tokens=False)]
    for text, our_ids, their_ids in zip(texts, of_ours, of_theirs, strict=True):
        if our_ids != their_ids:
            raise UserError(
                f"{file.path}: {text!r:.60} has the ids {our_ids!s:.60} by this file, {their_ids!s:.60} as "
                "transformers reads it with what is beside it; let both say the same"
            )


def _by_transformers(path: Path, ask: Callable[[Any], T]) -> T:
    """What `ask` gives for the AutoTokenizer of the folder of `path`, silently; any error becomes a UserError."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    settings = {"local_files_only": True, "trust_remote_code": False, "split_special_tokens": True}
    try:
        with without_standard_error():
            return ask(AutoTokenizer.from_pretrained(path.parent, **settings))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # of any kind, panics of its library too
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"{path}: transformers cannot read it ({reason:.200})") from None
    finally:
        logging.set_verbosity(verbosity)


# How texts stand in a sequence.


def _frame(vocabulary: Vocabulary, body: BodyConfig) -> tuple[list[int], list[int]]:
    """Ids before and after a text; nothing ends one to a body that goes on with it."""
    before, after = vocabulary.frame
    return before, [] if body.causal else after


def _stands_as(file: TokenizerJson, vocabulary: Vocabulary, body: BodyConfig) -> bool:
    """Whether a text stands in a sequence as such a body has it, and, where it sees both sides, a pair."""
    (before, after), tokenizer = _frame(vocabulary, body), file.load()
    with file.refusing():
        first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
        single, pair = tokenizer.encode("a"), tokenizer.encode("a", "b")
    first, second = [*before, *first, *after], [*after * (body.separators - 1), *second, *after]
    types = [0] * len(first) + [1] * len(second)
    same_pair = pair.ids == [*first, *second] and (body.token_types == 1 or pair.type_ids == types)
    return single.ids == first and (same_pair or body.causal)


def _framed(file: TokenizerJson, vocabulary: Vocabulary, body: BodyConfig) -> bytes:
    """`file` with texts put between <s> and </s> as such a body has them."""
    (before, after), strings = _frame(vocabulary, body), file.strings

    def tokens(ids: list[int], type: int = 0) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": strings[id], "type_id": type}} for id in ids]

    second = 1 if body.token_types > 1 else 0
    single = [*tokens(before), {"Sequence": {"id": "A", "type_id": 0}}, *tokens(after)]
    between = tokens(after * (body.separators - 1))
    special = {strings[id]: {"id": strings[id], "ids": [id], "tokens": [strings[id]]} for id in (*before, *after)}
    processor = dict(
        type="TemplateProcessing",
        single=single,
        pair=[*single, *between, {"Sequence": {"id": "B", "type_id": second}}, *tokens(after, second)],
        special_tokens=special,
    )
    return file.load({**file.content, "post_processor": processor}).to_str().encode()


# Export.


def write_tokenizer(pack: Path, folder: Path, body: BodyConfig, fills_masks: bool = True) -> None:
    """Write what `AutoTokenizer` reads for a pack.

    Texts are cut at the length of the body where a user asks for it. fills_masks: whether "<mask>" in a text is the
    token. It is in unigram vocabularies, whatever is set, as special tokens are (docs/hugging-face.md).
    """
    vocabulary = files.read_artifact(pack, VocabularyManifest).vocabulary(pack)
    if (pack / JSON_FILE).is_file():
        file, data = TokenizerJson(pack / JSON_FILE), (pack / JSON_FILE).read_bytes()
    else:
        file, data = _json_of_unigram(pack / UNIGRAM_FILE, vocabulary), b""
    if not _stands_as(file, vocabulary, body):
        data = _framed(file, vocabulary, body)
    (folder / JSON_FILE).write_bytes(data)
    spelt = {role: file.strings[id] for role, id in vocabulary.special.items()}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    files.write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": body.max_positions,
            **({} if fills_masks else {"split_special_tokens": True}),
            **{key: spelt[role] for key, role in (*_ROLES.items(), *_TEXT_ROLES.items()) if role in spelt},
            "model_input_names": inputs if body.token_types > 1 else [inputs[0], inputs[2]],
        },
    )


def _json_of_unigram(path: Path, vocabulary: Vocabulary) -> TokenizerJson:
    """A pack's tokenizer.model as a tokenizer.json that gives the same ids, special ones included.

    Two things differ. Hugging Face's `Precompiled` normaliser loses a mark where a letter carries two that are written
    apart (decomposed Unicode, as in NFD Vietnamese; normalise such text to NFC). And SentencePiece adds scores up in
    fp32, so a tie of two segmentations may be broken differently ("...."). Raises UserError where SentencePiece's
    settings have no counterpart.
    """
    try:
        model = protobuf.ModelProto.FromString(path.read_bytes())
    except DecodeError as error:
        raise UserError(f"{path}: not a SentencePiece model ({error})") from None
    spec, kinds = model.normalizer_spec, {piece.type for piece in model.pieces}
    if (
        not (spec.add_dummy_prefix and spec.remove_extra_whitespaces and spec.escape_whitespaces)
        or model.trainer_spec.model_type != protobuf.TrainerSpec.UNIGRAM
        or model.trainer_spec.treat_whitespace_as_suffix
        or kinds - {_PIECE.NORMAL, _PIECE.CONTROL, _PIECE.UNKNOWN}
    ):
        raise UserError(f"{path}: a SentencePiece model of another kind than is trained here cannot be exported")
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
    spaces = [
        {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
        for pattern, content in (("^ +| +$", ""), (" {2,}", " "))
    ]
    normalizers = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
    metaspace = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always", "split": True}
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": pieces[id][0], **flags, "lstrip": id == vocabulary.mask}
            for id in vocabulary.special_ids
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, *spaces]},
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": vocabulary.unk, "vocab": pieces},
    }
    return TokenizerJson(path, content)
