"""Configuration of text and vocabularies, as a recipe has it."""

from typing import Annotated, Literal

from pydantic import Field

from ds_minimodel.common.config import (
    DECIDES_NOTHING,
    NonNegativeInt,
    OneOrMore,
    PositiveInt,
    Probability,
    Section,
    Workers,
)


class TokenizerSection(Section):
    vocabulary: Literal["replace", "extend"] = "replace"
    """`replace`: a target has a vocabulary of its own; `extend`: the base's, and new tokens beside its own."""
    kind: Literal["unigram", "byte-bpe"] = "unigram"
    """Kind of vocabulary; `causal-lm` has and takes `byte-bpe` alone."""
    # SentencePiece takes no smaller ones.
    vocab_size: Annotated[int, Field(gt=5, le=10**7)] = 50_000
    """Ids of each language's vocabulary, the special ones included; of `extend` the number of new tokens."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9998
    """`unigram`: share of the text's characters that get tokens; the rest is `<unk>`."""
    input_sentences: Annotated[int, Field(gt=100, le=10**9)] = 5_000_000
    """Lines of text, at most, that a vocabulary is trained on, drawn from all; `unigram` holds 25 times their bytes."""


class LosslessTokenizerSection(TokenizerSection):
    """Of an objective that needs each text to come back from its ids."""

    kind: Literal["byte-bpe"] = "byte-bpe"  # type: ignore[assignment]


class Data(Section):
    text: Annotated[dict[str, OneOrMore], DECIDES_NOTHING]
    """Language → files, globs or data sets of the Hub; one may stand without a list."""
    column: Annotated[str, DECIDES_NOTHING] = "text"
    """Column of the text in JSON lines, CSV, TSV and Parquet."""
    blocks: Literal["complete", "complete_doc", "none"] = "complete"
    """What a training sample is made of; `causal-lm`'s default is `none`."""
    chats: Annotated[dict[str, OneOrMore], DECIDES_NOTHING] = {}
    """Target language → files of dialogues by which a decoder learns to answer; `adapt.chat_share` says how many."""
    min_words: Annotated[dict[str, NonNegativeInt], DECIDES_NOTHING] = {}
    """Language → documents of fewer words are dropped."""
    held_out: Probability = 0.005
    """Share of each language's documents, and of its dialogues, that is not trained on."""
    held_out_every: Annotated[PositiveInt | None, DECIDES_NOTHING] = None
    """Steps from one loss on held-out text to the next; a twentieth of all, of few steps more, where not given."""
    workers: Annotated[Workers | None, DECIDES_NOTHING] = None
    """Processes that tokenise; all cores where not given."""
