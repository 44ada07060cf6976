"""Vocabularies: how many ids one has, and which of them are special tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Target that gives no loss: of a position that is not predicted, or of a whole example.
# csrc/arguments.h: kIgnored.
IGNORED = -100
OFTEN = 50  # occurrences in the text by which a piece's row can be learned
MOST_UNKNOWN = 0.05  # of a text's bytes

FILLER = 0  # the id that rows of a batch are filled up with: lengths hide it, so any serves

UNKNOWN_LANGUAGE = "und"  # ISO 639-2: undetermined

_TITLES = {
    "bos": "token that begins a text (bos)",
    "eos": "token that ends a text (eos)",
    "pad": "padding token (pad)",
    "unk": "unknown token (unk)",
    "mask": "mask token (mask)",
}


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of the ids 0 … size - 1.

    bos, eos: the ids that begin and end a text (BERT's [CLS] and [SEP]). pad: what a text is filled
    up with; its embedding starts at zero. unk: what a tokenizer gives for a text that it has no
    pieces for. mask: what stands in place of a token to predict. Each is None where the vocabulary
    has no such token. bos, eos and unk may be one id (GPT-2's), pad and mask are ids of their own.
    roundtrip_counterexample: what shows that a text does not come back from its ids as it was, as a
    message says it; None where every text does. num_base: how many of the first ids are those of a
    base that this vocabulary extends; 0 where it is one of its own. name: the vocabulary's in
    messages.
    """

    size: int
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    roundtrip_counterexample: str | None = None
    num_base: int = 0
    name: str = field(default="the vocabulary", compare=False)

    def __post_init__(self) -> None:
        """ValueError where the ids cannot be those of one vocabulary."""
        if self.num_base > self.size:
            raise ValueError(f"num_base: {self.num_base} of only {self.size} ids")
        for token, id in self.special.items():
            if not 0 <= id < self.size:
                raise ValueError(f"special.{token}: {id} is not among the {self.size} ids")
            if token in ("pad", "mask") and list(self.special.values()).count(id) > 1:
                raise ValueError(f"special.{token}: {id} is the id of another special token too")

    @property
    def special(self) -> dict[str, int]:
        """{name: id} of the special tokens that the vocabulary has."""
        ids = {token: getattr(self, token) for token in _TITLES}
        return {token: id for token, id in ids.items() if id is not None}

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens, rising."""
        return sorted({*self.special.values()})

    def require(self, token: str, needed_by: str) -> int:
        """The id of a special token; UserError, with what it is `needed_by`, where the vocabulary
        has none.
        """
        id = self.special.get(token)
        if id is None:
            raise UserError(f"{self.name}: has no {_TITLES[token]}, which {needed_by} needs")
        return id

    def require_lossless(self, needed_by: str) -> None:
        """UserError, with what it is `needed_by`, where a text does not come back from its ids as
        it was.
        """
        if self.roundtrip_counterexample is not None:
            raise UserError(
                f"{self.name}: {self.roundtrip_counterexample}, and {needed_by} needs each text to "
                "come back as it "
                "was; tokenizer.kind byte-bpe trains a vocabulary that loses nothing"
            )

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """Ids that stand before a text and after it: bos and eos, each where the vocabulary has
        it.
        """
        before, after = ([] if id is None else [id] for id in (self.bos, self.eos))
        return before, after

    @property
    def start(self) -> int | None:
        """What a text is read after: the token that begins one, else the one that ended the text
        before.
        """
        return self.eos if self.bos is None else self.bos

    def bounds(self, needed_by: str) -> tuple[int, int]:
        """(start, eos), between which a task's texts stand; UserError, with `needed_by`, where
        nothing ends a text.
        """
        eos = self.require("eos", needed_by)
        return eos if self.bos is None else self.bos, eos

    @property
    def num_pieces(self) -> int:
        """How many ids are not special."""
        return self.size - len(self.special_ids)

    def pieces(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of pieces of text, by their numbers 0 … num_pieces - 1 among the ids that are not
        special.
        """
        ids = numbers.copy()
        for special in self.special_ids:
            ids += ids >= special
        return ids

    def facts(self) -> dict[str, Any]:
        """What a manifest says of the vocabulary."""
        facts = {
            "vocab_size": self.size,
            "special": self.special,
            "roundtrip_counterexample": self.roundtrip_counterexample,
        }
        return {**facts, "num_base": self.num_base} if self.num_base else facts


class VocabularyManifest(Manifest):
    """Manifest of what is of one vocabulary: a tokenizer, a language pack, a token store."""

    vocab_size: Annotated[int, Field(ge=1, le=2**31)]
    special: dict[str, Annotated[int | None, Field(ge=0)]]  # of those in _TITLES
    roundtrip_counterexample: str | None
    num_base: Annotated[int, Field(ge=0)] = 0

    noun = "a tokenizer or a language pack"

    def vocabulary(self, name: str | Path) -> Vocabulary:
        """The Vocabulary; `name` is what messages call it."""
        facts: dict[str, Any] = {token: self.special.get(token) for token in _TITLES}
        facts |= {
            "roundtrip_counterexample": self.roundtrip_counterexample,
            "num_base": self.num_base,
        }
        return Vocabulary(self.vocab_size, **facts, name=str(name))

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        self.vocabulary("")
        return self
