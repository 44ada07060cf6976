"""tokenizer.json of Hugging Face's library, typed: byte-level BPE, unigram and WordPiece vocabularies.

It is read here before that library sees it, which takes settings that this package could not keep (random merges) and
panics on some damaged ones. A setting that is not declared here may change the ids of a text, and is refused.
Truncation and padding are settings of a call, not of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import OF_LIST, Stored, read_model
from ds_minimodel.common.vocabulary import MASK, SPECIAL, UNK

ADVICE = "an import keeps what RoBERTa, XLM-R, CamemBERT and BERT have, and nothing else"
SPECIAL_TOKENS = (*SPECIAL, MASK)
BERT_SPECIAL_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")  # as WordPiece vocabularies spell them
_UNK = SPECIAL[UNK]
Id = Annotated[int, Field(ge=0, lt=1 << 24)]
Ids = dict[str, Id]  # vocab.json, encoder.json, added_tokens.json
_Pair = Annotated[tuple[str, str], OF_LIST]
_Piece = Annotated[tuple[str, FiniteFloat], OF_LIST]


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


class WordPiece(Strict):
    """Pieces of words, of which those that do not begin a word are spelt with ## before them."""

    type: Literal["WordPiece"] = "WordPiece"
    unk_token: Literal["[UNK]"]
    continuing_subword_prefix: Literal["##"] = "##"
    max_input_chars_per_word: Annotated[int, Field(ge=1, lt=1 << 24)] = 100
    vocab: Ids


class BertNormalizer(Strict):
    """BERT's own normalisation. strip_accents: None where it follows `lowercase`."""

    type: Literal["BertNormalizer"] = "BertNormalizer"
    clean_text: bool = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True


class BertPreTokenizer(Strict):
    """A cut at white space and around each sign of punctuation."""

    type: Literal["BertPreTokenizer"] = "BertPreTokenizer"


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


class TokenizerFile(Strict):
    """A tokenizer.json.

    special_tokens: how its kind spells the five special tokens, in the order of our ids. mask_takes_space: whether
    <mask> takes the white space before it where the file does not say, as in the published models.
    """

    special_tokens: ClassVar[tuple[str, ...]] = SPECIAL_TOKENS
    mask_takes_space: ClassVar[bool] = True

    version: Literal["1.0"] = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[AddedToken]
    post_processor: dict[str, Any] | None = None
    decoder: Any = None
    model: Any

    @property
    def strings(self) -> list[str]:
        """Those that the model itself has, in the order of their ids."""
        return sorted(self.model.vocab, key=self.model.vocab.get)

    def with_strings(self, strings: Sequence[str]) -> Self:
        """The same with the model's strings in this order, without added tokens and settings of a call.

        strings: all that it has, or more.
        """
        return self._with_vocab(vocab={string: id for id, string in enumerate(strings)})

    def _with_vocab(self, **vocab: Any) -> Self:
        rest = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        return self.model_copy(update={**rest, "added_tokens": [], "model": self.model.model_copy(update=vocab)})

    def without_special_tokens(self) -> Self:
        """The same, so that no text becomes a special token: "<s>" in it is three characters."""
        kept = [token for token in self.added_tokens if token.content not in self.special_tokens]
        return self.model_copy(update={"added_tokens": kept})


class ByteLevelFile(TokenizerFile):
    """tokenizer.json of a byte-level BPE."""

    normalizer: None = None
    pre_tokenizer: ByteLevel
    model: Bpe


class UnigramFile(TokenizerFile):
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

    @property
    def strings(self) -> list[str]:
        return [piece for piece, _ in self.model.vocab]

    def with_strings(self, strings: Sequence[str]) -> Self:
        scores = dict(self.model.vocab)
        return self._with_vocab(vocab=[(string, scores.get(string, 0.0)) for string in strings], unk_id=UNK)

    def without_special_tokens(self) -> Self:
        """Also of the model, which would find them in a text as pieces: no word holds a space."""
        file = super().without_special_tokens()
        vocab = [(f" {piece}" if piece in self.special_tokens else piece, score) for piece, score in self.model.vocab]
        return file.model_copy(update={"model": self.model.model_copy(update={"vocab": vocab})})


class WordPieceFile(TokenizerFile):
    """tokenizer.json of BERT."""

    special_tokens: ClassVar[tuple[str, ...]] = BERT_SPECIAL_TOKENS
    mask_takes_space: ClassVar[bool] = False

    normalizer: BertNormalizer
    pre_tokenizer: BertPreTokenizer
    model: WordPiece


class _Kind(Stored):
    class Model(Stored):
        type: str | None = None
        merges: Any = None
        unk_id: Any = None
        max_input_chars_per_word: Any = None

    model: Model


def kind_of(path: Path) -> str:
    """The type of the vocabulary in a tokenizer.json: BPE, Unigram, WordPiece or another."""
    model = read_model(path, _Kind, ADVICE).model
    told = {"BPE": model.merges, "Unigram": model.unk_id, "WordPiece": model.max_input_chars_per_word}
    kind = model.type or next((kind for kind, key in told.items() if key is not None), None)
    if kind is None:
        raise UserError(f"{path}: model: not a tokenizer of a kind that is known")
    return kind


def read_byte_level(path: Path) -> tuple[ByteLevelFile, dict[str, int]]:
    """(file, {string: id} of all its ids); UserError where it is not as RoBERTa's or its parts disagree."""
    file = read_model(path, ByteLevelFile, ADVICE)
    check_merges(file.model, path)
    return file, _all_ids(file, file.model.vocab, path)


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
    return file, _all_ids(file, vocab, path)


def read_word_piece(path: Path) -> tuple[WordPieceFile, dict[str, int]]:
    """(file, {string: id} of all its ids); UserError where it is not as BERT's or its parts disagree."""
    file = read_model(path, WordPieceFile, ADVICE)
    return file, _all_ids(file, file.model.vocab, path)


READERS: dict[str, Callable[[Path], tuple[TokenizerFile, dict[str, int]]]] = {
    "BPE": read_byte_level,
    "Unigram": read_unigram,
    "WordPiece": read_word_piece,
}


def _all_ids(file: TokenizerFile, vocab: dict[str, int], path: Path) -> dict[str, int]:
    """`vocab` and the added tokens; UserError where an id is contradicted."""
    ids, mask = dict(vocab), file.special_tokens[-1]
    for token in file.added_tokens:
        if ids.setdefault(token.content, token.id) != token.id:
            raise UserError(f"{path}: added_tokens: {token.content} has id {token.id}, elsewhere {ids[token.content]}")
        if not token.content:
            raise UserError(f"{path}: added_tokens: the token of id {token.id} is empty")
        if token.content == mask and (token.rstrip or token.single_word):
            raise UserError(f"{path}: added_tokens: {mask} with rstrip or single_word is not supported")
    return ids
