"""What the files beside a Hugging Face vocabulary say of how texts are cut: read, and refused where it would be lost.

`from_pretrained` takes tokens, prefix space and classes from tokenizer_config.json, special_tokens_map.json and
added_tokens.json too, some of it before what tokenizer.json says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from ds_minimodel.bodies import BODIES
from ds_minimodel.bodies.hugging_face import Architecture
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_model
from ds_minimodel.common.vocabulary import BOS, EOS, PAD, UNK
from ds_minimodel.data.tokenizer import JSON_FILE, WORD_START
from ds_minimodel.data.tokenizer_json import (
    ADVICE,
    BERT_SPECIAL_TOKENS,
    SPECIAL_TOKENS,
    AddedToken,
    BertNormalizer,
    Ids,
    Precompiled,
    UnigramFile,
    WordPieceFile,
)

_OWN_CLASSES = {
    f"{architecture.tokenizer}Tokenizer{fast}": architecture.tokenizer
    for kind in BODIES.values()
    for architecture in kind.hugging_face()
    for fast in ("", "Fast")
}
_WORD_PIECE_CLASS = "Bert"  # the own class whose vocabulary is WordPiece
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


class _Named(Stored):
    """A token that a file names, with its flags where they are given."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None  # None: where it is not special
    special: bool = True

    def with_id(self, id: int) -> AddedToken:
        normalized = not self.special if self.normalized is None else self.normalized
        values = {name: getattr(self, name) for name in ("content", "single_word", "lstrip", "rstrip", "special")}
        return AddedToken(id=id, normalized=normalized, **values)


def _with_flags(token: Any) -> Any:
    return {"content": token} if isinstance(token, str) else token


def _list_with_flags(tokens: Any) -> Any:
    tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens
    return [_with_flags(token) for token in tokens] if isinstance(tokens, list) else tokens


_Token = Annotated[_Named | None, BeforeValidator(_with_flags)]
_Tokens = Annotated[list[_Named] | None, BeforeValidator(_list_with_flags)]
# Which special token a setting names.
_SPECIAL_KEYS = {
    "bos_token": BOS,
    "cls_token": BOS,
    "pad_token": PAD,
    "eos_token": EOS,
    "sep_token": EOS,
    "unk_token": UNK,
    "mask_token": -1,
}


class _Settings(Stored):
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
    added_tokens_decoder: dict[str, Annotated[_Named, BeforeValidator(_with_flags)]] | None = None
    sp_model_kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class TokenizerSettings:
    """What all files beside a vocabulary say.

    own_class: RoBERTa's, XLM-R's, CamemBERT's or BERT's, where that reads the vocabulary: it adds <s> and </s> whatever
    tokenizer.json says. None for the generic one, which takes tokenizer.json as it is.
    special: spellings of the five special tokens. separators: of the texts of a pair. prefix: add_prefix_space where
    one states it. normalizer: BERT's by what they say. named: (file, token, its id where one states it) of what is
    added.
    """

    where: Path
    own_class: str | None
    special: tuple[str, ...]
    separators: int
    prefix: bool | None
    normalizer: BertNormalizer
    named: list[tuple[Path, _Named, int | None]]

    @classmethod
    def of(cls, folder: Path, architecture: Architecture, separators: int, kind: str) -> TokenizerSettings:
        """The settings in `folder` of a vocabulary of this kind; UserError for one that could not be kept."""
        where = folder / "tokenizer_config.json"
        config = _read(where)
        if config.tokenizer_class not in (None, *_OWN_CLASSES, *_GENERIC_CLASSES):
            raise UserError(
                f"{where}: tokenizer_class {config.tokenizer_class!r:.60} is not that of RoBERTa, XLM-R, CamemBERT or "
                "BERT"
            )
        own_class = _OWN_CLASSES.get(config.tokenizer_class or f"{architecture.tokenizer}Tokenizer")
        if own_class is not None and (own_class == _WORD_PIECE_CLASS) != (kind == "WordPiece"):
            stated = f"{where}: tokenizer_class {config.tokenizer_class!r}"
            reader = stated if config.tokenizer_class else f"{folder}: {own_class}Tokenizer"
            raise UserError(f"{reader} does not read a {kind} vocabulary")
        if (config.sp_model_kwargs or {}).get("enable_sampling"):
            raise UserError(f"{where}: sp_model_kwargs: enable_sampling cuts texts at random; remove it")
        special = BERT_SPECIAL_TOKENS if kind == "WordPiece" else SPECIAL_TOKENS
        named: list[tuple[Path, _Named, int | None]] = []
        for id, token in (config.added_tokens_decoder or {}).items():
            if not id.isdecimal():
                raise UserError(f"{where}: added_tokens_decoder: {id!r:.40} is no id")
            named.append((where, token, int(id)))
        path = folder / "added_tokens.json"
        if os.path.lexists(path):
            added = read_model(path, Ids, ADVICE)
            named += [(path, _Named(content=content, special=False), id) for content, id in added.items()]
        for path in (where, folder / "special_tokens_map.json"):
            settings = _read(path)
            for key, number in _SPECIAL_KEYS.items():
                token = getattr(settings, key)
                if token is not None and token.content != special[number]:
                    raise UserError(f"{path}: {key}: {token.content!r:.40} is not {special[number]}; {ADVICE}")
            for tokens in (settings.additional_special_tokens, settings.extra_special_tokens):
                named += [(path, token, None) for token in tokens or ()]
        normalizer = BertNormalizer(
            handle_chinese_chars=config.tokenize_chinese_chars,
            strip_accents=config.strip_accents,
            lowercase=config.do_lower_case,
        )
        return cls(where, own_class, special, separators, config.add_prefix_space, normalizer, named)

    def added(self, in_file: Sequence[AddedToken], ids: dict[str, int]) -> list[AddedToken]:
        """Tokens beside the five that texts are cut at before the vocabulary is asked, by id; `ids` gets theirs.

        in_file: those of tokenizer.json, whose flags hold. ids: {string: id} of the vocabulary. UserError where two
        files give a token different ids, or none gives it one.
        """
        found = {token.content: token for token in in_file if token.content not in self.special}
        taken = set(ids.values())
        for path, token, id in sorted(self.named, key=lambda named: named[2] is None):  # those with an id first
            known = ids.get(token.content)
            id = known if id is None else id
            if id is None:
                raise UserError(f"{path}: added token {token.content!r:.60} has no id in any file; {ADVICE}")
            if ids.setdefault(token.content, id) != id:
                raise UserError(f"{path}: added token {token.content:.60} has id {id}, in the vocabulary {known}")
            if known is None and id in taken:
                raise UserError(f"{path}: added token {token.content:.60} has the id {id} of another piece")
            taken.add(id)
            if token.content not in self.special:
                found.setdefault(token.content, token.with_id(id))
        for path, token, _ in self.named:
            id = ids[token.content]
            if id >= len(ids):
                raise UserError(
                    f"{path}: added token {token.content:.60} has id {id}, beyond the {len(ids)} ids in use"
                )
        return sorted(found.values(), key=lambda token: token.id)

    def check_normalizer(self, file: WordPieceFile, path: Path) -> None:
        """UserError where `path` treats case, accents or Chinese otherwise than BERT's own class will."""
        if self.own_class is not None and file.normalizer != self.normalizer:
            raise UserError(
                f"{path}: normalizer: not what do_lower_case, strip_accents and tokenize_chinese_chars of "
                f"{self.where.name} make it, which BertTokenizer goes by (do_lower_case is true by default); let both "
                "say the same"
            )

    def check_prefix(self, prefix: bool, path: Path) -> None:
        """UserError where the vocabulary's file `path` puts a space before texts and the settings say otherwise.

        RoBERTa's own class takes no notice of that file, and puts none where the settings do not say so.
        """
        said = bool(self.prefix) if self.own_class is not None and path.name == JSON_FILE else self.prefix
        if said is not None and said != prefix:
            raise UserError(
                f"{path}: add_prefix_space {str(prefix).lower()}, but {self.where.name} makes it "
                f"{str(said).lower()}; let both say the same"
            )

    def check_frame(self, processor: dict[str, Any] | None, ids: dict[str, int], path: Path) -> None:
        """UserError where `path` has a post_processor that puts other tokens around texts than the model's own."""
        processor = processor or {"type": None}
        bos, eos, type = self.special[BOS], self.special[EOS], processor.get("type")
        match type:
            case None | "ByteLevel":
                fits = self.own_class is not None
            case "RobertaProcessing" | "BertProcessing":
                fits = [processor.get(key) for key in ("cls", "sep")] == [[bos, ids.get(bos)], [eos, ids.get(eos)]]
                fits = fits and type == ("BertProcessing" if self.separators == 1 else "RobertaProcessing")
            case "TemplateProcessing":
                special = {token: {"id": token, "ids": [ids.get(token)], "tokens": [token]} for token in (bos, eos)}
                first, second = [(bos, 0), ("A", 0), (eos, 0)], [("B", 1), (eos, 1)]
                if self.separators == 2:
                    second = [(eos, 0), ("B", 0), (eos, 0)]
                fits = processor.get("special_tokens") == special and all(
                    self._template(processor.get(key)) == frame
                    for key, frame in (("single", first), ("pair", [*first, *second]))
                )
            case _:
                fits = False
        if not fits:
            raise UserError(f"{path}: post_processor: texts must stand between {bos} and {eos} as the model's do")

    def _template(self, parts: Any) -> list[Any]:
        """(name, token type) of the parts of a template; type 0 where the model has no other."""
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            return []
        values = [value for part in parts for value in part.values() if isinstance(value, dict)]
        return [(value.get("id"), value.get("type_id") if self.separators == 1 else 0) for value in values]


def _read(path: Path) -> _Settings:
    return read_model(path, _Settings, ADVICE) if os.path.lexists(path) else _Settings()


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
