"""Classification of sentences, `<s>A</s>`, and of pairs of them, `<s>A</s></s>B</s>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, Literal, TypeVar

import numpy as np

from ds_minimodel.common.config import EachOnce
from ds_minimodel.evaluation.batches import Examples, join
from ds_minimodel.evaluation.kind import (
    Encoded,
    FinetunedConfig,
    FinetunedKind,
    Labels,
    Logits,
    Scores,
    accuracy,
)
from ds_minimodel.evaluation.tables import (
    MULTINLI,
    PAIR,
    PAWSX,
    SENTENCE,
    XNLI,
    XNLI_TRAIN,
    Columns,
    Records,
    read_table,
)

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer


Role = TypeVar("Role", bound=str)


class LabelledConfig(FinetunedConfig, Generic[Role]):
    """Section of a recipe for tables with labels."""

    labels: Annotated[list[str], EachOnce] | None = None
    """In the order of their ids. Default: the training file's, sorted."""
    columns: Annotated[dict[Role, str], EachOnce] = {}
    """Role → column."""


class ClassificationConfig(LabelledConfig[Literal["text", "label", "language"]]):
    """Section of a recipe for sentences with labels."""

    kind: Literal["classification"]


class PairConfig(LabelledConfig[Literal["sentence1", "sentence2", "label", "language"]]):
    """Section of a recipe for pairs with labels."""

    kind: Literal["sentence-pair"]

    @property
    def min_length(self) -> int:
        """Shortest `max_length` at which any example can be encoded."""
        return 6


class Classification(FinetunedKind[Records, Encoded, LabelledConfig]):
    """Kind of task with one label for each sentence."""

    name = "classification"
    config: ClassVar[type[FinetunedConfig]] = ClassificationConfig
    fields: tuple[str, ...] = ("text",)
    # Forms of tables, those with the most columns first.
    known_forms: tuple[Columns, ...] = (SENTENCE,)
    reads_start = True
    hugging_face_class = "ForSequenceClassification"
    head_names = {"dense": "classifier.dense", "out": "classifier.out_proj"}

    def table_forms(self, named: Mapping[str, str]) -> tuple[Columns, ...]:
        """Return the forms that a task's tables may have.

        They are the known ones, or the one that the recipe gives.

        Args:
            named: {role: column} of the recipe, which may be empty.
        """
        if not named:
            return self.known_forms
        form = Columns(
            texts=tuple(named.get(role, role) for role in self.fields),
            label=named.get("label", "label"),
            language=named.get("language"),
        )
        return (form,)

    def read(self, path: str, task: LabelledConfig, language: str, labels: Labels) -> Records:
        """Read the rows of one table."""
        return read_table(path, self.table_forms(task.columns), labels=labels, language=language)

    def labels(self, task: LabelledConfig, source: str) -> list[str]:
        """Return the recipe's labels, or those of the training file, sorted."""
        return task.labels or list(self.read(task.train, task, language=source, labels=None).labels)

    def encode(
        self,
        tokenizer: Tokenizer,
        records: Records,
        task: LabelledConfig,
        max_length: int,
        separators: int = 2,
    ) -> Encoded:
        """Encode sentences or pairs as sequences."""
        return Encoded(encode_table(tokenizer, records, max_length, separators=separators))

    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return a model that scores the labels."""
        from ds_minimodel.models.trainable import SequenceClassifier

        return SequenceClassifier(config, vocab_size, self.num_outputs(labels))

    def hugging_face_config(self, labels: Labels) -> dict[str, object]:
        """Return the entries for the labels and the kind of problem."""
        return super().hugging_face_config(labels) | {"problem_type": "single_label_classification"}

    def score(
        self,
        task: LabelledConfig,
        language: str,
        records: Records,
        encoded: Encoded,
        logits: Logits,
    ) -> Scores:
        """Return the accuracy."""
        predicted = np.zeros(len(records.targets), dtype=np.int64)
        for index, logits_BL in logits:
            predicted[index] = logits_BL.argmax(-1)
        return {"score": accuracy(predicted, records.targets)}

    def metric(self, task: LabelledConfig) -> str:
        """Return "accuracy"."""
        return "accuracy"


class Pair(Classification):
    """Kind of task with one label for each pair of sentences, as in XNLI, MultiNLI and PAWS-X."""

    name = "sentence-pair"
    config = PairConfig
    fields = ("sentence1", "sentence2")
    known_forms = (PAWSX, XNLI, MULTINLI, XNLI_TRAIN, PAIR)


def encode_table(
    tokenizer: Tokenizer, records: Records, max_length: int, separators: int = 2
) -> Examples:
    """Encode sentences as `<s>A</s>`, and pairs as `<s>A</s></s>B</s>`.

    A sentence is cut to fit `max_length`; of a pair the longer text is cut first, and the second
    where both are as long (Hugging Face's `longest_first`).

    Args:
        tokenizer: Of the language.
        records: One or two columns of text, and targets.
        max_length: Most tokens of an example.
        separators: How many </s> stand between two texts; RoBERTa's form has two, BERT's one.
    """
    bos, eos = tokenizer.vocabulary.bounds("classification")
    columns = [tokenizer.encode(column) for column in records.texts]
    if len(columns) == 1:
        sequences = [np.array([bos, *ids[: max_length - 2], eos]) for ids in columns[0]]
        return join(sequences, records.targets, reads_start=True)
    room = max_length - 2 - separators
    sequences = []
    seconds: list[int] = []
    for first, second in zip(*columns, strict=True):
        size = min(len(second), max(room // 2, room - len(first)))
        begin = [bos, *first[: room - size], *[eos] * separators]
        sequences.append(np.array([*begin, *second[:size], eos]))
        seconds.append(len(begin))
    return join(sequences, records.targets, reads_start=True, second=seconds)
