"""Configuration of text and vocabularies, as a recipe has it."""

from typing import Annotated, Literal

from pydantic import Field

from ds_minimodel.common.config import (
    DECIDES_NOTHING,
    EachOnce,
    NonNegativeInt,
    OneOrMore,
    Probability,
    Section,
    Workers,
)
from ds_minimodel.common.names import Name


class TokenizerSection(Section):
    """What a recipe says of a vocabulary."""

    vocabulary: Literal["replace", "extend"] = "replace"
    """Its own vocabulary, or the base's with new tokens."""
    kind: Literal["unigram", "byte-bpe"] = "unigram"
    """Decoders need `byte-bpe`."""
    # SentencePiece takes no smaller vocabulary than this.
    vocab_size: Annotated[int, Field(gt=5, le=10**7)] = 50_000
    """Ids, special ones included. With `extend`: new tokens."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9998
    """`unigram`: share of characters that get tokens."""
    input_sentences: Annotated[int, Field(gt=100, le=10**9)] = 5_000_000
    """Most lines to train on; `unigram` needs 25 times their size in memory."""


class LosslessTokenizerSection(TokenizerSection):
    """The section for an objective that needs each text to come back from its ids."""

    kind: Literal["byte-bpe"] = "byte-bpe"  # type: ignore[assignment]


class Data(Section):
    """What a recipe says of text."""

    text: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Language → files, globs or data sets of the Hub."""
    column: Annotated[str, DECIDES_NOTHING] = "text"
    """Column of the text in JSON lines and tables."""
    pairs: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → files of source texts with translations."""
    test_pairs: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → files of pairs that are only scored."""
    pair_columns: Annotated[
        Annotated[list[str], Field(min_length=2, max_length=2), EachOnce] | None, DECIDES_NOTHING
    ] = None
    """Columns of source and target. Default: named as the languages."""
    blocks: Literal["complete", "complete_doc", "none"] | None = None
    """Default: `complete`; for decoders `none`."""
    chats: Annotated[dict[str, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → dialogues that teach a decoder to answer."""
    draw: Annotated[int | None, Field(gt=0, le=2**50), DECIDES_NOTHING] = None
    """Bytes to take of each text, spread evenly over it. Default: all."""
    min_words: Annotated[dict[str, NonNegativeInt], DECIDES_NOTHING] = {}
    """Language → fewest words of a document."""
    held_out: Probability = 0.005
    """Share of documents and dialogues that is kept out of training."""
    workers: Annotated[Workers | None, DECIDES_NOTHING] = None
    """Processes that tokenise. Default: all cores."""
