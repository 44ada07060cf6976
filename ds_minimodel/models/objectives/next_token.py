"""Next-token prediction: each token of a text from those before it (GPT's and Llama's)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ds_minimodel.common.sections import Section
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary
from ds_minimodel.models.objectives.objective import Objective

if TYPE_CHECKING:
    from ds_minimodel.data.samples import Samples


class NextToken(Objective):
    """Next-token prediction: every position is read, and all but the last of a sequence predict."""

    name = "next-token"
    settings = Section
    causal = True
    needs_lossless = True
    whole_documents = True
    defaults = {"data": {"blocks": "none"}}
    hugging_face_class = "ForCausalLM"

    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Beside the tokens: targets (B, S) int64, the token after each, IGNORED at a row's last and behind it."""
        tokens, lengths, _ = samples
        targets = np.full_like(tokens, IGNORED)
        targets[:, :-1] = tokens[:, 1:]
        targets[np.arange(tokens.shape[1]) >= lengths[:, None] - 1] = IGNORED
        return {"tokens": tokens, "targets": targets, "count": int((lengths - 1).clip(0).sum())}

    def share_read(self, settings: Section) -> float:
        return 1.0

    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        return {"tokens": (seq_length,), "targets": (seq_length,)}
