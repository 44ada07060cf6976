"""The objective of finished models: to give for a line what the base gives for its translation.

Samples are lines with the number of their target (pipeline/lines.py); the loss is the head's
(models/sentence.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ds_minimodel.common.config import Section
from ds_minimodel.models.objectives.objective import Objective

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import Model


class Sentence(Objective):
    """Targets are rows of numbers: vectors, or scores of labels.

    Nothing is dropped: what a text shall give is what the whole network gives for another one.
    """

    name = "sentence"
    settings = Section
    needs = ("bos", "eos")
    predicts_tokens: ClassVar[bool] = False
    hugging_face_class = "Model"

    def share_read(self, settings: Section) -> float:
        """Return 1: every position is read."""
        return 1.0

    def model(
        self, config: BodyConfig, vocab_size: int, head_depths: Sequence[int], num_base: int = 0
    ) -> Model:
        """Make a fresh SentenceEncoder without dropout."""
        from ds_minimodel.models.sentence import SentenceEncoder

        undropped = config.model_copy(update={"dropout": 0.0, "attention_dropout": 0.0})
        return SentenceEncoder(undropped, vocab_size, head_depths=head_depths, num_base=num_base)
