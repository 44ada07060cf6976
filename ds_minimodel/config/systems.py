"""The systems that are compared: the paper's, and those beyond it.

Each has one declaration, which everything else reads. To add a system is to add an entry to SYSTEMS
(CONTRIBUTING.md): what it pretrains, over what it adapts, how it is drawn. Names of systems stand
in recipes, folders and job records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ds_minimodel.common.config import Few, Section


class Mini(Section):
    """Sizes of a mini-model."""

    depth: Few = 4
    """Layers of the body in the mini-model."""
    new_layers: Few = 2
    """MiniPost: new layers that step 1b trains above them."""


class Depth(Enum):
    """A number of layers by the key of the recipe that holds it."""

    FULL = "model.num_layers"
    MINI = "mini.depth"


@dataclass(frozen=True)
class System:
    """How one system is made, adapted and shown.

    Attributes:
        name: its name in recipes and folders.
        title: its name in tables and plots.
        about: what it does, in a line.
        heads: where its body has heads; the deepest is the body's number of layers.
        body: the system whose body it takes instead of pretraining one.
        adapts_at: how many layers of the body step 2 runs.
        builds_mini: whether step 1b builds a mini-model, new layers over the body's first
            mini.depth ones, and step 2 runs that in place of the body.
        starts_from_base: whether it can take over a foreign body.
        trains: what of the body trains in step 2: "" nothing, "all" its weights, "low-rank" updates
            of its linear layers. With the latter two it cannot carry tasks over.
        color: matplotlib's color of its curve.
        line: matplotlib's style of its line.
        marker: matplotlib's marker of its points.
    """

    name: str
    title: str
    about: str = ""
    heads: tuple[Depth, ...] = ()
    body: str = ""
    adapts_at: Depth = Depth.FULL
    builds_mini: bool = False
    starts_from_base: bool = False
    trains: str = ""
    color: str = "#59636e"
    line: Any = "-"
    marker: str = "o"

    @property
    def body_name(self) -> str:
        """The system whose body this one adapts and finetunes, and the name of its folders."""
        return self.body or self.name

    @property
    def body_heads(self) -> tuple[Depth, ...]:
        """Where the body that it adapts has heads."""
        return SYSTEMS[self.body_name].heads

    @property
    def needs_shallow_mini(self) -> bool:
        """Whether mini.depth must be below model.num_layers, else it would be the baseline."""
        return self.builds_mini or self.body_heads == (Depth.MINI,)

    def head_depths(self, num_layers: int, mini: Mini) -> tuple[int, ...]:
        """Return the numbers of layers after which the system's body has a head, rising."""
        given = {Depth.FULL: num_layers, Depth.MINI: mini.depth}
        return tuple(sorted({given[head] for head in self.body_heads}))

    def adapt_depth(self, num_layers: int, mini: Mini) -> int:
        """Return the number of layers that step 2 runs."""
        if self.builds_mini:
            return mini.depth + mini.new_layers
        return mini.depth if self.adapts_at is Depth.MINI else num_layers


# They stand in the order of the paper's tables. Colours are Okabe and Ito's, which colour-blind
# readers tell apart.
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System(
            "bl_base",
            "BL_BASE",
            "token embeddings are trained through the whole frozen body",
            heads=(Depth.FULL,),
            starts_from_base=True,
            color="#000000",
        ),
        System(
            "bl_small",
            "BL_SMALL",
            "as BL_BASE with a body that has few layers, which finetuning uses, too",
            heads=(Depth.MINI,),
            adapts_at=Depth.MINI,
            color="#E69F00",
            line="--",
            marker="s",
        ),
        System(
            "minipost",
            "MiniPost",
            "token embeddings are trained through the body's first layers and new ones on top of "
            "them",
            body="bl_base",
            builds_mini=True,
            starts_from_base=True,
            color="#0072B2",
            line="-.",
            marker="^",
        ),
        System(
            "minijoint",
            "MiniJoint",
            "token embeddings are trained through the body's first layers, which have an output of "
            "their own",
            heads=(Depth.MINI, Depth.FULL),
            adapts_at=Depth.MINI,
            color="#D55E00",
            marker="D",
        ),
        System(
            "full",
            "All weights",
            "token embeddings and all weights of the body are trained",
            body="bl_base",
            trains="all",
            starts_from_base=True,
            color="#CC79A7",
            line=":",
            marker="x",
        ),
        System(
            "lora",
            "LoRA",
            "token embeddings and a LoRA of the body are trained",
            body="bl_base",
            trains="low-rank",
            starts_from_base=True,
            color="#56B4E9",
            line=(0, (3, 1, 1, 1)),
            marker="+",
        ),
    )
}

# The system that the others are measured against: compute, speedups and near-maximal performance
# refer to it.
BASELINE = "bl_base"
