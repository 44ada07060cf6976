"""The context of a step: its workdir and its ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ds_minimodel.pipeline.layout import WorkdirLayout

if TYPE_CHECKING:
    from ds_minimodel.text.workers import MpiRanks
    from ds_minimodel.training.world import World


@dataclass(frozen=True)
class Context:
    """A workdir and the ranks that do a step in it.

    Attributes:
        layout: The workdir's folders.
        ranks: None where a step is done in one process, or is only looked at.
    """

    layout: WorkdirLayout
    ranks: World | MpiRanks | None = None

    @property
    def world(self) -> World:
        """The ranks of a step that runs on ranks."""
        assert self.ranks is not None
        return cast("World", self.ranks)
