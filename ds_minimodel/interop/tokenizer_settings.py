"""What the files beside a Hugging Face vocabulary say of how texts are cut: read, and refused where it would be lost.

`from_pretrained` takes tokens, prefix space and classes from tokenizer_config.json, special_tokens_map.json and
added_tokens.json too, some of it before what tokenizer.json says.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_model
from ds_minimodel.common.vocabulary import BOS, EOS, MASK, PAD, SPECIAL, UNK
from ds_minimodel.data.tokenizer import BYTE_LEVEL_FILE, WORD_START
from ds_minimodel.data.tokenizer_json import ADVICE, Ids, Precompiled, UnigramFile, check_added, spelt

_BOS, _EOS = SPECIAL[BOS], SPECIAL[EOS]
_OWN_CLASSES = "RobertaTokenizer", "RobertaTokenizerFast", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast"
_GENERIC_CLASSES = "PreTrainedTokenizerFast", "TokenizersBackend"  # take tokenizer.json as it is

# Normalisers (after Precompiled) and splitters of XLM-R's tokenizer.json that give SentencePiece's ids: of transformers
# up to 3, from 4 on, and ours, the last, which alone needs no Precompiled.
_RUNS = {"type": "Replace", "pattern": {"Regex": " {2,}"}}
_STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
_ENDS = {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""}
_WORDS, _WHOLE = ["WhitespaceSplit", "Metaspace"], ["Metaspace"]
_SPACES: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([], _WORDS),
    ([{**_RUNS, "content": " "}], _WORDS),
    ([_STRIP, {**_RUNS, "content": WORD_START}], _WHOLE),
    ([_ENDS, {**_RUNS, "content": " "}], _WHOLE),
]


def _content(token: Any) -> Any:
    """The string of a token that may be written with its flags."""
    return token.get("content") if isinstance(token, dict) else token


def _contents(tokens: Any) -> Any:
    tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
    return [_content(token) for token in tokens] if isinstance(tokens, list) else tokens


_Bos = Annotated[str | None, BeforeValidator(_content), spelt(SPECIAL[BOS])]
_Pad = Annotated[str | None, BeforeValidator(_content), spelt(SPECIAL[PAD])]
_Eos = Annotated[str | None, BeforeValidator(_content), spelt(SPECIAL[EOS])]
_Unk = Annotated[str | None, BeforeValidator(_content), spelt(SPECIAL[UNK])]
_Mask = Annotated[str | None, BeforeValidator(_content), spelt(MASK)]
_Token = Annotated[str, BeforeValidator(_content)]
_Tokens = Annotated[list[str] | None, BeforeValidator(_contents)]


class _Settings(Stored):
    """Of tokenizer_config.json and special_tokens_map.json what changes the ids of a text."""

    tokenizer_class: str | None = None
    add_prefix_space: bool | None = None
    bos_token: _Bos = None
    cls_token: _Bos = None
    pad_token: _Pad = None
    eos_token: _Eos = None
    sep_token: _Eos = None
    unk_token: _Unk = None
    mask_token: _Mask = None
    additional_special_tokens: _Tokens = None
    extra_special_tokens: _Tokens = None
    added_tokens_decoder: dict[str, _Token] | None = None
    sp_model_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class TokenizerSettings:
    """What all files beside a vocabulary say.

    prefix: add_prefix_space where one states it. ids: (file, token, its id) of what is added.

    own_class: whether RoBERTa's or XLM-R's own class reads the vocabulary, which adds <s> and </s> whatever
    tokenizer.json says, and else takes tokenizer.json as it is.
    """

    where: Path
    own_class: bool
    prefix: bool | None
    ids: list[tuple[Path, str, int]]

    @classmethod
    def of(cls, folder: Path) -> TokenizerSettings:
        """The settings in `folder`; UserError for one that could not be kept."""
        where = folder / "tokenizer_config.json"
        config = _read(where)
        if config.tokenizer_class not in (None, *_OWN_CLASSES, *_GENERIC_CLASSES):
            raise UserError(f"{where}: tokenizer_class {config.tokenizer_class!r:.60} is not RoBERTa's or XLM-R's")
        if (config.sp_model_kwargs or {}).get("enable_sampling"):
            raise UserError(f"{where}: sp_model_kwargs: enable_sampling cuts texts at random; remove it")
        for path in (where, folder / "special_tokens_map.json"):
            settings = _read(path)
            check_added(settings.additional_special_tokens or (), f"{path}: additional_special_tokens")
            check_added(settings.extra_special_tokens or (), f"{path}: extra_special_tokens")
        decoder = config.added_tokens_decoder or {}
        check_added(decoder.values(), f"{where}: added_tokens_decoder")
        ids = [(where, token, int(id) if id.isdecimal() else -1) for id, token in decoder.items()]
        path = folder / "added_tokens.json"
        if os.path.lexists(path):
            added = read_model(path, Ids, ADVICE)
            check_added(added, str(path))
            ids += [(path, token, id) for token, id in added.items()]
        return cls(where, config.tokenizer_class not in _GENERIC_CLASSES, config.add_prefix_space, ids)

    def check_ids(self, ids: dict[str, int]) -> None:
        """UserError where a token has another id in a vocabulary, {string: id}."""
        for path, token, id in self.ids:
            if ids.get(token) != id:
                raise UserError(f"{path}: added token {token} has id {id}, in the vocabulary {ids.get(token)}")

    def check_prefix(self, prefix: bool, path: Path) -> None:
        """UserError where the vocabulary's file `path` puts a space before texts and the settings say otherwise.

        RoBERTa's own class takes no notice of that file, and puts none where the settings do not say so.
        """
        said = bool(self.prefix) if self.own_class and path.name == BYTE_LEVEL_FILE else self.prefix
        if said is not None and said != prefix:
            raise UserError(
                f"{path}: add_prefix_space {str(prefix).lower()}, but {self.where.name} makes it "
                f"{str(said).lower()}; let both say the same"
            )

    def check_frame(self, processor: dict[str, Any] | None, ids: dict[str, int], path: Path) -> None:
        """UserError where `path` has a post_processor that puts other tokens around texts than RoBERTa's."""
        processor = processor or {"type": None}
        match processor.get("type"):
            case None | "ByteLevel":
                fits = self.own_class
            case "RobertaProcessing":
                fits = [processor.get(key) for key in ("cls", "sep")] == [[_BOS, ids.get(_BOS)], [_EOS, ids.get(_EOS)]]
            case "TemplateProcessing":
                special = {token: {"id": token, "ids": [ids.get(token)], "tokens": [token]} for token in (_BOS, _EOS)}
                fits = processor.get("special_tokens") == special and all(
                    _template(processor.get(key)) == frame
                    for key, frame in (("single", [_BOS, "A", _EOS]), ("pair", [_BOS, "A", _EOS, _EOS, "B", _EOS]))
                )
            case _:
                fits = False
        if not fits:
            raise UserError(f"{path}: post_processor: texts must stand between {_BOS} and {_EOS} as RoBERTa's do")


def _read(path: Path) -> _Settings:
    return read_model(path, _Settings, ADVICE) if os.path.lexists(path) else _Settings()


def _template(parts: Any) -> list[Any]:
    """The names of the parts of a template."""
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return []
    return [value.get("id") for part in parts for value in part.values() if isinstance(value, dict)]


def check_spaces(file: UnigramFile, path: Path) -> str | None:
    """The charsmap, in base 64, of a tokenizer.json that treats white space as SentencePiece; UserError else."""
    first, *others = [*file.normalizers, None]
    charsmap = first.precompiled_charsmap if isinstance(first, Precompiled) else None
    parts = [part.model_dump() for part in (others if charsmap is not None else [first, *others]) if part]
    splitter = [part.type for part in file.splitters]
    if (parts, splitter) not in _SPACES or (charsmap is None and (parts, splitter) != _SPACES[-1]):
        raise UserError(
            f"{path}: normalizer and pre_tokenizer are not those of a SentencePiece unigram model like XLM-R's"
        )
    return charsmap
