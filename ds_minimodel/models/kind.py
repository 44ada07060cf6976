"""The declaration of a kind of body: all that the package asks of RoBERTa, BERT and others.

A kind is one subclass of BodyConfig and one entry of BODIES (models/__init__.py): its
configuration, modules and costs. The section `model` of the recipe, config.json of an artifact, an
import and a plan are read by it. The recipe is read without torch, so this file and a kind's
declaration import torch, and the module of the body, in the methods that need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import model_validator

from ds_minimodel.common.config import Few, Length, Probability, Section, Size
from ds_minimodel.common.random import DropoutSites
from ds_minimodel.models.heads import AnyHead


class BodyConfig(Section):
    """Sizes of a body, with the paper's as defaults; the keys that every kind has."""

    kind: str
    """Kind of body, with its own keys and defaults."""
    num_layers: Few = 12
    """Transformer layers."""
    hidden_size: Size = 768
    """Width; `num_heads` must divide it."""
    num_heads: Few = 12
    """Attention heads."""
    ffn_size: Size = 3072
    """Inner width of the feed-forward blocks."""
    max_positions: Length = 512
    """Tokens of the longest sequence."""
    dropout: Probability = 0.1
    """Dropout after embeddings and blocks."""
    attention_dropout: Probability = 0.1
    """Dropout of attention probabilities."""
    head: AnyHead | None = None
    """What reads the last states of a finished model, in the place of a language model's head."""

    # What its language model is trained with.
    objective: ClassVar[str] = "masked-lm"
    # How many </s> stand between the two texts of a pair.
    separators: ClassVar[int] = 2
    # Vectors that tell the two texts apart. A single one would tell nothing, and is part of the
    # positions.
    token_types: ClassVar[int] = 1
    # Whether a task's scores are of the last head's outputs, not of its inputs.
    tasks_read_head: ClassVar[bool] = False
    # After a classifier's dense layer; empty where it has none.
    task_activation: ClassVar[str] = "tanh"
    # Whether a position sees what is before it alone.
    causal: ClassVar[bool] = False
    # Whether positions turn queries and keys.
    rotary: ClassVar[bool] = False
    # Whether a language's output projection has a bias.
    output_bias: ClassVar[bool] = True
    # Whether feed-forward blocks have a gate beside their activation.
    gated: ClassVar[bool] = False

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide hidden_size {self.hidden_size}"
            )
        if self.num_heads % self.num_key_heads:
            raise ValueError(
                f"num_kv_heads {self.num_key_heads} does not divide num_heads {self.num_heads}"
            )
        if self.rotary and self.head_width % 2:
            raise ValueError(
                f"a head is {self.head_width} wide (head_size, or hidden_size / num_heads), which "
                "must be even, for rotary positions"
            )
        if not DropoutSites.fit(self.num_layers, self.num_heads):
            raise ValueError(
                f"{self.num_layers} layers of {self.num_heads} heads have too many dropouts to "
                "number"
            )
        return self

    def make_body(self, head_depths: Sequence[int] = ()) -> Any:
        """Make a fresh Body (body.py), drawn from torch's default generator.

        Args:
            head_depths: layers after which there is a head of a language model.
        """
        raise NotImplementedError

    @property
    def products(self) -> BodyProducts:
        """The products that a pass through a body makes."""
        raise NotImplementedError

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values: as many as of queries, or fewer, which these share."""
        return self.num_heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    @property
    def norms_heads(self) -> bool:
        """Whether queries and keys are normalised."""
        return False

    @property
    def tied(self) -> bool:
        """Whether a language's embeddings are its output projection too."""
        return True

    @property
    def trained_with(self) -> str:
        """The name of its objective: the language model's, or that of a finished head."""
        return self.objective if self.head is None else "sentence"

    @property
    def language_tensors(self) -> tuple[str, ...]:
        """Names of the tensors of a language over this body.

        They are its embeddings and what its output projection, which is not there under a finished
        head, adds.
        """
        names = ["tokens"]
        if self.head is None:
            if not self.tied:
                names.append("output")
            if self.output_bias:
                names.append("bias")
        return tuple(names)

    @property
    def dropout_sites(self) -> DropoutSites:
        """The numbers of the dropouts of this body and of a task's head on it."""
        return DropoutSites(self.num_layers, self.num_heads)

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """{what: size} that the number of tensor-parallel ranks must divide."""
        return {"model.num_heads": self.num_heads, "model.ffn_size": self.ffn_size}

    @property
    def period(self) -> int:
        """After how many layers the kinds of layers repeat, where not all are of one kind."""
        return 1

    @property
    def task_depths(self) -> tuple[int, ...]:
        """Depths at which a task's model has heads of the body's."""
        reads = self.tasks_read_head or self.head is not None
        return (self.num_layers,) if reads else ()

    def recorded(self) -> dict[str, Any]:
        """Return what a Section records; without the head where there is no finished one."""
        facts = super().recorded()
        return {key: value for key, value in facts.items() if key != "head" or value is not None}

    def with_layers(self, num_layers: int) -> Self:
        """Return the same body with another number of layers."""
        return self.model_copy(update={"num_layers": num_layers})


def keys_seen(window: tuple[int | None, int | None], length: int) -> float:
    """Return the keys that a position sees, itself among them, on average.

    Args:
        window: how many keys before and after its position; None for all.
        length: tokens of the sequence.
    """
    reaches = [min(length - 1, length if reach is None else reach) for reach in window]
    return 1 + sum(reach - reach * (reach + 1) / (2 * length) for reach in reaches)


class LayerProducts(NamedTuple):
    """FLOPs of one layer's products of matrices, forward; 2mnp for an m x n by an n x p matrix.

    Attributes:
        key: at each position, read or not (keys and values).
        query: at each position whose output is computed, before attention.
        output: there, after attention.
        pair: of each such position with each key that it sees (scores, and the sum of values).
        window: how many keys before and after itself a position sees; None: all of its sequence.
    """

    key: float
    query: float
    output: float
    pair: float
    window: tuple[int | None, int | None] = (None, None)


class BodyProducts(NamedTuple):
    """FLOPs of a body's products.

    Attributes:
        layers: of each layer, from the lowest on.
        head: of a head at a position that it reads, all but the output matrix.
    """

    layers: tuple[LayerProducts, ...]
    head: float
