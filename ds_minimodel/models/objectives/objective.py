"""The declaration of a training objective: all that the package asks of masked language modelling …

An objective is one subclass of Objective in one file beside this one, and one entry of OBJECTIVES (__init__.py).
Samplers, training steps, plans and costs read it; none of them asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ds_minimodel.common.sections import Section
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from ds_minimodel.data.samples import SampleReader, Samples
    from ds_minimodel.models.body import LanguagePack


class Objective(ABC):
    """What a body is trained to do on text.

    name: in recipes (`objective`) and config.json. settings: its own keys of the recipe's sections pretrain, build_mini
    and adapt. needs: special tokens that a vocabulary must have, as Vocabulary names them. causal: whether it is for
    bodies whose positions see what is before them alone. needs_lossless: whether text must come back from the ids of a
    vocabulary that is trained for it. whole_documents: whether a document is one text with its line ends, else each
    line is one. defaults: of keys of the recipe's other sections. hugging_face_class: how the name of Hugging Face's
    class for it ends; empty where that library has none.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Section]]
    needs: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = False
    needs_lossless: ClassVar[bool] = False
    whole_documents: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    hugging_face_class: ClassVar[str] = ""

    @abstractmethod
    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """What is learned from samples of a text, as numpy arrays that models/trainable.py names.

        tokens (B, S), which may be those of the samples, changed in place; read (B, M), where not all positions are
        read; targets, IGNORED where there is none; count, the number of loss terms.
        """

    @abstractmethod
    def share_read(self, settings: Section) -> float:
        """Share of a sequence's positions that the heads read, on average."""

    @abstractmethod
    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        """{name: shape of one row} of `batch` for full sequences, of the form that costs most; all are int64.

        Plans are made of it.
        """

    def loss(self, pack: LanguagePack, x_PH: Tensor, table: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Sum of the losses of a batch at one head, a float32 scalar.

        x_PH: the head's output at the positions read, row after row. table: the pack's output projection.
        """
        return pack.cross_entropy(x_PH, table, batch["targets"].flatten())

    def text_bytes(self, batch: Mapping[str, Any], bytes_of_ids: NDArray[np.int64]) -> int:
        """Bytes of the text that the loss terms of a batch of numpy arrays stand for, by which losses on held-out text
        compare between vocabularies; 0 where they stand for no text. bytes_of_ids: (ids,).
        """
        targets = batch["targets"]
        return int(bytes_of_ids[targets[targets != IGNORED]].sum())


class Sampler:
    """Batches of an objective on a text, as functions of the samples' global numbers."""

    def __init__(self, reader: SampleReader, objective: Objective, settings: Section):
        """UserError where the vocabulary of the text has not the special tokens that the objective needs."""
        self.reader, self.objective, self.settings = reader, objective, settings
        for token in objective.needs:
            reader.store.vocabulary.require(token, f"the objective {objective.name}")

    def rows(self, first: int, last: int) -> dict[str, Any]:
        """The batch of the samples [first, last): Objective.batch with lengths (B,) and sample_keys (B,) int32."""
        samples = self.reader.read(first, last)
        keys = samples.keys.view(np.int32)
        batch = self.objective.batch(samples, self.reader.store.vocabulary, self.settings)
        return {**batch, "lengths": samples.lengths.astype(np.int32), "sample_keys": keys}
