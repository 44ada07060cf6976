"""The declaration of a kind of body: all that the package asks of RoBERTa, BERT …

A kind is one subclass of BodyKind and one entry of BODIES (models/__init__.py). Its configuration is declared once: the
section `model` of the recipe, config.json of an artifact, an import and a plan are read by it. The recipe is read
without torch, so this file and a kind's declaration import torch, and the module of the body, in the methods that need
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds_minimodel.models.config import BodyConfig, BodyProducts

if TYPE_CHECKING:
    from ds_minimodel.models.body import Body


class BodyKind(ABC):
    """One kind of body: its configuration, modules, costs, and its names in other libraries.

    name: in recipes (model.kind) and config.json. objective: what it is trained with where the recipe names none.
    without_kernels: what of it runs by torch's own operators, in words, since this package has no kernels for it.
    starts: names of the ways in which a fresh body may start beside `random` (model.initialisation).
    adaptable: parts of the body that step 2 can train beside the pack (adapt.train_positions, train_embedding_norm).
    """

    name: str
    config: type[BodyConfig]
    objective: str = "masked-lm"
    without_kernels: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    adaptable: tuple[str, ...] = ("positions", "embedding_norm")

    @abstractmethod
    def body(self, config: BodyConfig, head_depths: Sequence[int] = ()) -> Body:
        """A fresh body with language-model heads after `head_depths` layers, drawn from torch's default generator."""

    @abstractmethod
    def products(self, config: BodyConfig) -> BodyProducts:
        """The products that a pass through a body of this configuration makes."""

    def start(self, body: Body, name: str) -> None:
        """Give a fresh body the starting values of `name`, one of `starts`."""
        raise NotImplementedError
