"""tokenizer.json of Hugging Face's library, typed: RoBERTa's byte-level BPE and XLM-R's unigram vocabularies.

It is read here before that library sees it, which takes settings that this package could not keep (random merges,
tokens cut out of a text before the vocabulary is asked) and panics on some damaged ones. A setting that is not declared
here may change the ids of a text, and is refused. Truncation and padding are settings of a call, not of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, FiniteFloat

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Stored, read_model
from ds_minimodel.common.vocabulary import MASK, SPECIAL, UNK

ADVICE = "an import keeps what RoBERTa and XLM-R have, and nothing else"
SPECIAL_TOKENS = (*SPECIAL, MASK)
_UNK = SPECIAL[UNK]
Id = Annotated[int, Field(ge=0, lt=1 << 24)]
Ids = dict[str, Id]  # vocab.json, encoder.json, added_tokens.json
_OfList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)  # JSON has no tuples
_Pair = Annotated[tuple[str, str], _OfList]
_Piece = Annotated[tuple[str, FiniteFloat], _OfList]


def _no_dropout(value: float | None) -> float | None:
    if value:
        raise ValueError("merges that are dropped at random cannot be kept; set it to null")
    return value


def spelt(token: str) -> AfterValidator:
    """A validator of how a special token is spelt, where it is given at all."""

    def check(value: str | None) -> str | None:
        if value not in (None, token):
            raise ValueError(f"{value!r:.40} is not {token}")
        return value

    return AfterValidator(check)


class Strict(Stored):
    """A part in which an unknown key may mean something that would be lost: it is refused."""

    model_config = ConfigDict(extra="forbid")


class AddedToken(Strict):
    """A token that is found in a text before the vocabulary is asked."""

    id: Id
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class ByteLevel(Strict):
    """The splitter of GPT-2 and RoBERTa. add_prefix_space: a text begins as if a space stood before it."""

    type: Literal["ByteLevel"]
    add_prefix_space: bool
    trim_offsets: bool = True
    use_regex: Literal[True] = True


class Bpe(Strict):
    """Pieces and merges. Older files have no type, and each merge as one string."""

    type: Literal["BPE"] = "BPE"
    dropout: Annotated[float | None, AfterValidator(_no_dropout)] = None
    unk_token: Annotated[str | None, spelt(SPECIAL[UNK])] = None
    continuing_subword_prefix: Literal[""] | None = None
    end_of_word_suffix: Literal[""] | None = None
    fuse_unk: bool = False
    byte_fallback: Literal[False] = False
    ignore_merges: bool = False
    vocab: Ids
    merges: list[str] | list[_Pair]

    @property
    def pairs(self) -> list[tuple[str, ...]]:
        return [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in self.merges]


class Unigram(Strict):
    """Pieces, (string, log probability) each, in the order of their ids."""

    type: Literal["Unigram"] = "Unigram"
    unk_id: Id
    vocab: list[_Piece]
    byte_fallback: Literal[False] = False


class Precompiled(Strict):
    """SentencePiece's own normalisation, a table in base 64."""

    type: Literal["Precompiled"]
    precompiled_charsmap: str


class Replace(Strict):
    """What matches `pattern` becomes `content`."""

    type: Literal["Replace"]
    pattern: dict[str, str]
    content: str


class Strip(Strict):
    """White space at the ends goes."""

    type: Literal["Strip"]
    strip_left: bool
    strip_right: bool


class Normalizers(Strict):
    """Several, in this order."""

    type: Literal["Sequence"]
    normalizers: list[Annotated[Precompiled | Replace | Strip, Field(discriminator="type")]]


class WhitespaceSplit(Strict):
    """A cut at white space."""

    type: Literal["WhitespaceSplit"]


class Metaspace(Strict):
    """A cut before each word, whose space is written as SentencePiece does. Older files have add_prefix_space."""

    type: Literal["Metaspace"]
    replacement: Literal["▁"]
    add_prefix_space: Literal[True] = True
    prepend_scheme: Literal["always"] = "always"
    split: Literal[True] = True
    str_rep: Literal["▁"] = "▁"


class Splitters(Strict):
    """Several, in this order."""

    type: Literal["Sequence"]
    pretokenizers: list[Annotated[WhitespaceSplit | Metaspace, Field(discriminator="type")]]


class _File(Strict):
    version: Literal["1.0"] = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[AddedToken]
    post_processor: dict[str, Any] | None = None
    decoder: Any = None


class ByteLevelFile(_File):
    """tokenizer.json of a byte-level BPE."""

    normalizer: None = None
    pre_tokenizer: ByteLevel
    model: Bpe


class UnigramFile(_File):
    """tokenizer.json of a SentencePiece unigram model."""

    normalizer: Annotated[Normalizers | Precompiled | Replace | Strip, Field(discriminator="type")] | None = None
    pre_tokenizer: Annotated[Splitters | Metaspace | WhitespaceSplit, Field(discriminator="type")]
    model: Unigram

    @property
    def normalizers(self) -> list[Precompiled | Replace | Strip]:
        if isinstance(self.normalizer, Normalizers):
            return self.normalizer.normalizers
        return [self.normalizer] if self.normalizer else []

    @property
    def splitters(self) -> list[WhitespaceSplit | Metaspace]:
        return self.pre_tokenizer.pretokenizers if isinstance(self.pre_tokenizer, Splitters) else [self.pre_tokenizer]


class _Kind(Stored):
    class Model(Stored):
        type: str | None = None
        merges: Any = None
        unk_id: Any = None

    model: Model


def kind_of(path: Path) -> str:
    """The type of the vocabulary in a tokenizer.json: BPE, Unigram or another."""
    model = read_model(path, _Kind, ADVICE).model
    kind = model.type or ("BPE" if model.merges is not None else "Unigram" if model.unk_id is not None else None)
    if kind is None:
        raise UserError(f"{path}: model: not a tokenizer of a kind that is known")
    return kind


def read_byte_level(path: Path) -> tuple[ByteLevelFile, dict[str, int]]:
    """(file, {string: id} of all its ids); UserError where it is not as RoBERTa's or its parts disagree."""
    file = read_model(path, ByteLevelFile, ADVICE)
    check_merges(file.model, path)
    return file, _all_ids(file.model.vocab, file.added_tokens, path)


def check_merges(model: Bpe, path: Path) -> None:
    """UserError for the first merge that is not of two pieces into a third."""
    for number, pair in enumerate(model.pairs, 1):
        if len(pair) != 2 or not {*pair, "".join(pair)} <= model.vocab.keys():
            merge = " ".join(pair)
            raise UserError(
                f"{path}: merge {number}, {merge!r:.60}, is not of two pieces of the vocabulary into a third"
            )


def read_unigram(path: Path) -> tuple[UnigramFile, dict[str, int]]:
    """(file, {string: id} of all its ids); UserError where it is not as XLM-R's or its parts disagree."""
    file = read_model(path, UnigramFile, ADVICE)
    vocab = {piece: id for id, (piece, _) in enumerate(file.model.vocab)}
    if len(vocab) < len(file.model.vocab) or vocab.get(_UNK) != file.model.unk_id:
        raise UserError(f"{path}: model: a piece comes twice, or unk_id {file.model.unk_id} is not the id of {_UNK}")
    return file, _all_ids(vocab, file.added_tokens, path)


def _all_ids(vocab: dict[str, int], added: Sequence[AddedToken], path: Path) -> dict[str, int]:
    """`vocab` and the added tokens; UserError where there are others than RoBERTa's five, or an id is contradicted."""
    ids = dict(vocab)
    check_added((token.content for token in added), f"{path}: added_tokens")
    for token in added:
        if ids.setdefault(token.content, token.id) != token.id:
            raise UserError(f"{path}: added_tokens: {token.content} has id {token.id}, elsewhere {ids[token.content]}")
        if token.content == MASK and (token.rstrip or token.single_word):
            raise UserError(f"{path}: added_tokens: {MASK} with rstrip or single_word is not supported")
    return ids


def check_added(contents: Iterable[str], where: str) -> None:
    """UserError where `contents` name a token that texts would be cut at before the vocabulary is asked."""
    for content in contents:
        if content not in SPECIAL_TOKENS:
            raise UserError(
                f"{where}: {content!r:.60} is cut out of texts before the vocabulary is asked; only "
                f"{' '.join(SPECIAL_TOKENS)} may be added, so remove it and its row of the embeddings"
            )
