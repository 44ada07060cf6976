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
# Occurrences in the text from which on a piece's row can be learned.
MIN_OCCURRENCES = 50
# Share of a text's bytes that may be unknown where a vocabulary is to serve it.
MAX_UNKNOWN = 0.05

# The id that rows of a batch are filled up with: lengths hide it, so any serves.
FILLER = 0

# ISO 639-2: undetermined.
UNKNOWN_LANGUAGE = "und"

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

    A special token that it does not have is None. bos, eos and unk may be one id, as GPT-2's are;
    pad and mask share theirs with no other.

    Args:
        size: how many ids there are.
        bos: the id that begins a text, such as BERT's [CLS].
        eos: the id that ends a text, such as BERT's [SEP].
        pad: what a text is filled up with; its embedding starts at zero.
        unk: what a tokenizer gives for a text that it has no pieces for.
        mask: what stands in place of a token to predict.
        roundtrip_counterexample: what shows that a text does not come back from its ids as it was,
            as a message says it; None where every text does.
        num_base: how many of the first ids are those of a base that this vocabulary extends.
        name: what messages call it.
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
        """Raise ValueError where the ids cannot be those of one vocabulary."""
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
        ids = {
            "bos": self.bos,
            "eos": self.eos,
            "pad": self.pad,
            "unk": self.unk,
            "mask": self.mask,
        }
        return {token: id for token, id in ids.items() if id is not None}

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens, rising."""
        return sorted({*self.special.values()})

    def require(self, token: str, needed_by: str) -> int:
        """Return the id of a special token.

        Args:
            token: its name in `special`.
            needed_by: what needs it, for the message.

        Raises:
            UserError: the vocabulary has no such token.
        """
        id = self.special.get(token)
        if id is None:
            raise UserError(f"{self.name}: has no {_TITLES[token]}, which {needed_by} needs")
        return id

    def require_lossless(self, needed_by: str) -> None:
        """Raise UserError where a text does not come back from its ids as it was.

        Args:
            needed_by: what needs that, for the message.
        """
        if self.roundtrip_counterexample is not None:
            raise UserError(
                f"{self.name}: {self.roundtrip_counterexample}, and {needed_by} needs each text to "
                "come back as it was; tokenizer.kind byte-bpe trains a vocabulary that loses "
                "nothing"
            )

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        """The ids before a text and those after it: bos and eos, where the vocabulary has them."""
        before = [] if self.bos is None else [self.bos]
        after = [] if self.eos is None else [self.eos]
        return before, after

    @property
    def start(self) -> int | None:
        """What a text is read after: its bos, else the eos of the text before."""
        return self.eos if self.bos is None else self.bos

    def bounds(self, needed_by: str) -> tuple[int, int]:
        """Return (start, eos), between which a task's texts stand.

        Args:
            needed_by: what needs them, for the message.

        Raises:
            UserError: nothing ends a text.
        """
        eos = self.require("eos", needed_by)
        start = eos if self.bos is None else self.bos
        return start, eos

    @property
    def num_pieces(self) -> int:
        """How many ids are not special."""
        return self.size - len(self.special_ids)

    def pieces(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of pieces of text by their indices among the ids that are not special.

        Args:
            indices: 0 … num_pieces - 1, of any shape.
        """
        ids = indices.copy()
        for special in self.special_ids:
            ids += ids >= special
        return ids

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the vocabulary."""
        facts: dict[str, Any] = {
            "vocab_size": self.size,
            "special": self.special,
            "roundtrip_counterexample": self.roundtrip_counterexample,
        }
        if self.num_base:
            facts["num_base"] = self.num_base
        return facts


class VocabularyManifest(Manifest):
    """Manifest of what belongs to one vocabulary: a tokenizer, a language pack, a token store."""

    vocab_size: Annotated[int, Field(ge=1, le=2**31)]
    special: dict[str, Annotated[int | None, Field(ge=0)]]
    roundtrip_counterexample: str | None
    num_base: Annotated[int, Field(ge=0)] = 0

    noun = "a tokenizer or a language pack"

    def vocabulary(self, name: str | Path) -> Vocabulary:
        """Return the Vocabulary, which messages call `name`."""
        return Vocabulary(
            size=self.vocab_size,
            bos=self.special.get("bos"),
            eos=self.special.get("eos"),
            pad=self.special.get("pad"),
            unk=self.special.get("unk"),
            mask=self.special.get("mask"),
            roundtrip_counterexample=self.roundtrip_counterexample,
            num_base=self.num_base,
            name=str(name),
        )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        self.vocabulary("")
        return self
