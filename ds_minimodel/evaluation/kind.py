"""The interface of a kind of task: all that the package asks of classification, question answering
and the others.

A kind is one subclass of TaskKind in one file beside this one, and one line in KINDS
(evaluation/__init__.py): of FinetunedKind, which adds a head that trains, or of TaskKind alone,
which is scored with the body as it is. The recipe is read without torch, so these files import
torch and ds_minimodel.models in the methods that need them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import Field, PositiveFloat

from ds_minimodel.common.config import (
    DECIDES_BY_CONTENT,
    DECIDES_NOTHING,
    Length,
    PositiveInt,
    Section,
    Size,
)
from ds_minimodel.evaluation.batches import Examples

if TYPE_CHECKING:
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import TaskModel
    from ds_minimodel.tokenizers.tokenizer import Tokenizer

# (index (B,), fp32 outputs of the module's `logits`) of each batch.
Logits = Iterable[tuple[np.ndarray, np.ndarray]]
# By name; "score" is in percent.
Scores = dict[str, float]
# Names in the order of their ids; None where there are none, or where a file's serve.
Labels = list[str] | None


class TaskConfig(Section):
    """What a recipe says of a task of any kind."""

    kind: str
    """Kind of task."""
    test: Annotated[dict[str, str], DECIDES_BY_CONTENT]
    """Language → test file."""
    max_length: Length | None = None
    """Most tokens of an example, or of a window of `qa`."""

    @property
    def least_length(self) -> int:
        """The `max_length` below which no example can be encoded."""
        return 3


class FinetunedConfig(TaskConfig):
    """What a recipe says of a task that is finetuned."""

    train: Annotated[str, DECIDES_BY_CONTENT, Field(min_length=1)]
    """Training file in the source language."""
    dev: Annotated[str, DECIDES_NOTHING] = ""
    """Source-language file to score after every epoch."""
    lr: PositiveFloat | None = None
    """Peak learning rate. Default, here and below: `finetune`'s."""
    epochs: PositiveInt | None = None
    """Passes over the training file."""
    batch_size: Size | None = None
    """Examples of a step."""

    scored: ClassVar[set[str]] = set()  # keys that are read where it is scored alone

    @property
    def training(self) -> tuple[int, float, int, int]:
        """(batch_size, lr, epochs, max_length) of a task that has them all, as Finetune.task gives
        it.
        """
        assert self.batch_size and self.lr and self.epochs and self.max_length
        return self.batch_size, self.lr, self.epochs, self.max_length


@dataclass(frozen=True)
class Encoded:
    """A file of a task as token sequences. A kind whose answers need more to be found derives from
    it.
    """

    examples: Examples


R = TypeVar("R")  # the records of a file: sentences with labels, questions, …
E = TypeVar("E", bound=Encoded)
C = TypeVar("C", bound=TaskConfig)
F = TypeVar("F", bound=FinetunedConfig)


class TaskKind(ABC, Generic[R, E, C]):
    """One kind of task: how its files are read and encoded, its model and scores."""

    # In the recipe.
    name: ClassVar[str]  # of the key `kind`
    config: ClassVar[type[TaskConfig]]  # its keys
    objective: ClassVar[str] = ""  # that its body must have been trained with; empty: any

    # The model. reads_start: the head is a dense layer and the outputs at position 0, else the
    # outputs everywhere.
    has_labels: ClassVar[bool] = True
    reads_start: ClassVar[bool]

    # --- Files ---

    @abstractmethod
    def read(self, path: str, task: C, language: str, labels: Labels) -> R:
        """Read the records of one file.

        Args:
            path: of the file.
            task: what the recipe says.
            language: whose rows are read, where a file mixes several.
            labels: names in the order of their ids; None for those of the file.

        Raises:
            UserError: Something is missing, damaged or has a label that is not among these; the
                message has file and line.
        """

    def check_files(self, task: C, source: str) -> None:
        """Raise UserError where a file of the task cannot be used, before anything is trained."""
        for language, path in sorted(task.test.items()):
            self.read(path, task, language, labels=None)

    @abstractmethod
    def encode(
        self, tokenizer: Tokenizer, records: R, task: C, max_length: int, separators: int = 2
    ) -> E:
        """Encode records as sequences of at most `max_length` tokens.

        separators: how many </s> the body that reads them has between two texts
        (BodyConfig.separators).
        """

    # --- Model ---

    @abstractmethod
    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return the kind's model over a body of `config`, all of it with fresh weights, a head of
        its own included.
        """

    # --- Scores ---

    @abstractmethod
    def score(self, task: C, language: str, records: R, encoded: E, logits: Logits) -> Scores:
        """Return {"score": what reports show, and further columns of scores.json} of a test file in
        `language`.
        """

    @abstractmethod
    def metric(self, task: C) -> str:
        """Return the name of the metric that "score" is, for the titles of tables."""

    def compressed(self, task: C, language: str) -> float | None:
        """Return the bits per byte that xz, which knows no language, takes for a test file; None
        where no bits are counted.
        """
        return None


class FinetunedKind(TaskKind[R, E, F]):
    """A kind of task with a head that is finetuned on a training file."""

    # For export.
    hugging_face_class: ClassVar[str]  # how its name ends: "ForSequenceClassification"
    head_names: ClassVar[dict[str, str]]  # module of the head -> Hugging Face's of RoBERTa

    @abstractmethod
    def labels(self, task: F, source: str) -> Labels:
        """Return the names of the labels in id order: the recipe's, else the training file's; None
        for a kind without labels.

        source: language of the training file.
        """

    def check_files(self, task: F, source: str) -> None:
        """Check the training and development files, too, and for a label that the task does not
        have.
        """
        labels = self.labels(task, source)
        files = {(source, task.train), *task.test.items()}
        if task.dev:
            files.add((source, task.dev))
        for language, path in sorted(files):
            self.read(path, task, language, labels=labels)

    def num_outputs(self, labels: Labels) -> int:
        """Return how many scores the head gives at a position that it reads."""
        assert labels is not None
        return len(labels)

    def hugging_face_config(self, labels: Labels) -> dict[str, object]:
        """Return the entries of Hugging Face's config.json for the head."""
        if labels is None:
            return {}
        return {
            "id2label": dict(enumerate(labels)),
            "label2id": {name: id for id, name in enumerate(labels)},
        }


def accuracy(
    predictions: Sequence[object] | np.ndarray, labels: Sequence[object] | np.ndarray
) -> float:
    """Return the percentage of the predictions (N,) that are the label."""
    assert len(predictions) == len(labels)
    return 100.0 * float((np.asarray(predictions) == np.asarray(labels)).mean())
