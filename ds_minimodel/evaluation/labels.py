"""Score the labels that a finished classifier gives, without finetuning.

A label is compared with the right one, or with the label of the text's translation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Generic, Literal

import numpy as np
from pydantic import Field

from ds_minimodel.common.config import EachOnce
from ds_minimodel.evaluation.classification import encode_table
from ds_minimodel.evaluation.kind import (
    C,
    Encoded,
    Labels,
    Logits,
    R,
    Scores,
    TaskConfig,
    TaskKind,
    accuracy,
)
from ds_minimodel.evaluation.retrieval import Role, Sought, encode_sought, read_sought, vectors_of
from ds_minimodel.evaluation.tables import Columns, Records, read_table

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer


class FinishedKind(TaskKind[R, Encoded, C], Generic[R, C]):
    """A kind that asks a finished classifier for its scores."""

    objective = "sentence"
    has_labels = False
    reads_start = False

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return the finished model itself."""
        from ds_minimodel.models.sentence import SentenceEncoder

        return SentenceEncoder(config, vocab_size)


class RightLabelConfig(TaskConfig):
    """What a recipe says of texts with labels that a finished classifier is to give."""

    kind: Literal["finished-classifier"]
    labels: Annotated[list[str], EachOnce, Field(min_length=2)]
    """The classifier's labels in the order of its scores."""
    columns: Annotated[dict[Literal["text", "label", "language"], str], EachOnce] = {}
    """Role → column."""


class RightLabel(FinishedKind[Records, RightLabelConfig]):
    """Whether the likeliest label of a text is the right one."""

    name = "finished-classifier"
    config = RightLabelConfig

    def read(self, path: str, task: RightLabelConfig, language: str, labels: Labels) -> Records:
        """Read the rows of one table."""
        form = Columns(
            texts=(task.columns.get("text", "text"),),
            label=task.columns.get("label", "label"),
            language=task.columns.get("language"),
        )
        return read_table(path, [form], labels=task.labels, language=language)

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Records,
        task: RightLabelConfig,
        max_length: int,
        separators: int = 2,
    ) -> Encoded:
        """Encode the texts as sequences."""
        return Encoded(encode_table(tokenizer, records, max_length, separators=separators))

    def score(
        self,
        task: RightLabelConfig,
        language: str,
        records: Records,
        encoded: Encoded,
        logits: Logits,
    ) -> Scores:
        """Return the accuracy."""
        scores = vectors_of(logits, len(encoded.examples))
        return {"score": accuracy(scores.argmax(1), records.targets)}

    def metric(self, task: RightLabelConfig) -> str:
        """Return "accuracy"."""
        return "accuracy"


class SameLabelConfig(TaskConfig):
    """What a recipe says of texts that are to get the labels of others."""

    kind: Literal["same-label"]
    columns: Annotated[dict[Role, str], EachOnce] = {}
    """Role → column."""


class SameLabel(FinishedKind[Sought, SameLabelConfig]):
    """Whether a text, the query, gets the likeliest label of its translation, the document."""

    name = "same-label"
    config = SameLabelConfig

    def read(self, path: str, task: SameLabelConfig, language: str, labels: Labels) -> Sought:
        """Read texts and their translations."""
        return read_sought(path, task.columns)

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Sought,
        task: SameLabelConfig,
        max_length: int,
        separators: int = 2,
    ) -> Encoded:
        """Encode the queries, then the documents."""
        return encode_sought(tokenizer, records, max_length)

    def score(
        self,
        task: SameLabelConfig,
        language: str,
        records: Sought,
        encoded: Encoded,
        logits: Logits,
    ) -> Scores:
        """Return the share of pairs whose texts get the same label."""
        likeliest = vectors_of(logits, len(encoded.examples)).argmax(1)
        queries, documents = np.split(likeliest, [len(records.queries)])
        query, document = records.right.T
        return {"score": accuracy(queries[query], documents[document])}

    def metric(self, task: SameLabelConfig) -> str:
        """Return "same label"."""
        return "same label"
