"""The objective of finished models: give for a line what the untouched model gives for its
translation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.config import Section
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.models.objectives.objective import Objective

if TYPE_CHECKING:
    from ds_minimodel.data.samples import Samples
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import Model


class Sentence(Objective):
    """Samples are lines, whose targets are rows of numbers: vectors, or scores of labels."""

    name = "sentence"
    settings = Section
    needs = ("bos", "eos")
    predicts_tokens: ClassVar[bool] = False
    hugging_face_class = "Model"

    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Beside the tokens: targets (B, D) fp32, those of the samples."""
        assert samples.targets is not None
        return {"tokens": samples.tokens, "targets": samples.targets, "count": len(samples.tokens)}

    def share_read(self, settings: Section) -> float:
        return 1.0

    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        return {"tokens": (seq_length,)}

    def text_bytes(self, batch: Mapping[str, Any], bytes_of_ids: NDArray[np.int64]) -> int:
        return 0

    def model(
        self, config: BodyConfig, vocab_size: int, head_depths: Sequence[int], num_base: int = 0
    ) -> Model:
        from ds_minimodel.models.sentence import SentenceEncoder

        return SentenceEncoder(config, vocab_size, head_depths, num_base)
