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
    """Of a target: one of its own, or the base's with new tokens."""
    kind: Literal["unigram", "byte-bpe"] = "unigram"
    """Kind of vocabulary. Decoders take `byte-bpe` alone."""
    # SentencePiece takes no smaller vocabulary than this.
    vocab_size: Annotated[int, Field(gt=5, le=10**7)] = 50_000
    """Ids of a vocabulary, special ones included. With `extend`: number of new tokens."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9998
    """`unigram`: share of the text's characters that get tokens."""
    input_sentences: Annotated[int, Field(gt=100, le=10**9)] = 5_000_000
    """Most lines that a vocabulary is trained on. `unigram` needs 25 times their size in memory."""


class LosslessTokenizerSection(TokenizerSection):
    """The section for an objective that needs each text to come back from its ids."""

    kind: Literal["byte-bpe"] = "byte-bpe"  # type: ignore[assignment]


class Data(Section):
    """What a recipe says of text."""

    text: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Language → files, globs or data sets of the Hub. An extended vocabulary splits a third
    language's as its base.
    """
    column: Annotated[str, DECIDES_NOTHING] = "text"
    """Column of the text in JSON lines, CSV, TSV and Parquet."""
    pairs: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → files of pairs of a text in the source and its translation, each a kind of
    text.
    """
    test_pairs: Annotated[dict[Name, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → files of pairs of which nothing is learned."""
    pair_columns: Annotated[
        Annotated[list[str], Field(min_length=2, max_length=2), EachOnce] | None, DECIDES_NOTHING
    ] = None
    """Columns of the source's and the target's text. Default: those named as the languages."""
    blocks: Literal["complete", "complete_doc", "none"] | None = None
    """What a training sample is made of. Default: `complete`, of decoders `none`."""
    chats: Annotated[dict[str, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → dialogues from which a decoder learns to answer."""
    draw: Annotated[int | None, Field(gt=0, le=2**50), DECIDES_NOTHING] = None
    """About so many bytes of each text are taken, from all over it. Default: all."""
    min_words: Annotated[dict[str, NonNegativeInt], DECIDES_NOTHING] = {}
    """Language → fewest words of a document."""
    held_out: Probability = 0.005
    """Share of documents and of dialogues that is not trained on."""
    workers: Annotated[Workers | None, DECIDES_NOTHING] = None
    """Processes that tokenise. Default: all cores."""
