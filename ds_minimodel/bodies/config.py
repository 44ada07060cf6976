"""The configuration of a body, and the products of matrices that one makes: what all kinds have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

from pydantic import model_validator

from ds_minimodel.common.random import DropoutSites
from ds_minimodel.common.sections import Few, Length, Probability, Section, Size


class BodyConfig(Section):
    """Sizes of a body, with the paper's as defaults; the keys that every kind has."""

    kind: str
    num_layers: Few = 12
    hidden_size: Size = 768
    num_heads: Few = 12
    ffn_size: Size = 3072
    max_positions: Length = 512
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1

    separators: ClassVar[int] = 2  # how many </s> stand between the two texts of a pair
    token_types: ClassVar[int] = 1  # vectors that tell them apart; with one there is none, since positions can hold it
    tasks_read_head: ClassVar[bool] = False  # whether a task's scores are of the last head's outputs, not of its inputs

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} does not divide hidden_size {self.hidden_size}")
        if not DropoutSites.fit(self.num_layers, self.num_heads):
            raise ValueError(f"{self.num_layers} layers of {self.num_heads} heads have too many dropouts to number")
        return self

    @property
    def dropout_sites(self) -> DropoutSites:
        """The numbers of the dropouts of this body and of a task's head on it."""
        return DropoutSites(self.num_layers, self.num_heads)

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """{key: size} that the number of tensor-parallel ranks must divide."""
        return {"num_heads": self.num_heads, "ffn_size": self.ffn_size}

    @property
    def period(self) -> int:
        """After how many layers the kinds of layers repeat, where not all are of one kind."""
        return 1

    @property
    def task_depths(self) -> tuple[int, ...]:
        """Depths at which a task's model has heads of the body's."""
        return (self.num_layers,) if self.tasks_read_head else ()

    def with_layers(self, num_layers: int) -> Self:
        """The same body with another number of layers."""
        return self.model_copy(update={"num_layers": num_layers})


class LayerProducts(NamedTuple):
    """FLOPs of one layer's products of matrices, forward; 2mnp for an m x n by an n x p matrix.

    key: at each position, read or not (keys and values). query: at each position whose output is computed, before
    attention. output: there, after attention. pair: of each such position with each key that it sees (scores, and the
    sum of values). reach: keys that a position sees at most, itself among them; None: all of its sequence.
    """

    key: float
    query: float
    output: float
    pair: float
    reach: int | None = None


class BodyProducts(NamedTuple):
    """FLOPs of a body's products: of its layers from the lowest on, and of a head for a position that it reads, all but
    the output matrix."""

    layers: tuple[LayerProducts, ...]
    head: float
