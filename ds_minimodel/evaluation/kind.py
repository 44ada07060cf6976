"""Interface of a kind of task: all that the package asks of classification and the others.

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
    """Section of a recipe for a task of any kind."""

    kind: str
    """Kind of task."""
    test: Annotated[dict[str, str], DECIDES_BY_CONTENT]
    """Language → test file."""
    max_length: Length | None = None
    """Most tokens of an example, or of a window of `qa`."""

    @property
    def min_length(self) -> int:
        """Shortest `max_length` at which any example can be encoded."""
        return 3


class FinetunedConfig(TaskConfig):
    """Section of a recipe for a task that is finetuned."""

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

    # Keys that only scores depend on, not the training.
    scored: ClassVar[set[str]] = set()

    @property
    def training(self) -> tuple[int, float, int, int]:
        """The task's (batch_size, lr, epochs, max_length).

        It must have them all, as Finetune.task fills them in.
        """
        assert self.batch_size and self.lr and self.epochs and self.max_length
        return self.batch_size, self.lr, self.epochs, self.max_length


@dataclass(frozen=True)
class Encoded:
    """Token sequences of a task's file.

    A kind that needs more to find its answers derives from it.
    """

    examples: Examples


R = TypeVar("R")  # the records of a file: sentences with labels, questions, …
E = TypeVar("E", bound=Encoded)
C = TypeVar("C", bound=TaskConfig)
F = TypeVar("F", bound=FinetunedConfig)


class TaskKind(ABC, Generic[R, E, C]):
    """One kind of task: how its files are read and encoded, its model and scores."""

    name: ClassVar[str]  # value of the recipe's key `kind`
    config: ClassVar[type[TaskConfig]]  # keys of the recipe
    # Objective that the body must have been trained with; "" for any.
    objective: ClassVar[str] = ""

    # Whether the model's head is a dense layer and the outputs at position 0, else the outputs
    # everywhere.
    reads_start: ClassVar[bool]
    has_labels: ClassVar[bool] = True

    # --- Files ---

    @abstractmethod
    def read(self, path: str, task: C, language: str, labels: Labels) -> R:
        """Read the records of one file.

        Args:
            path: Of the file.
            task: The recipe's section.
            language: Whose rows are read, where a file mixes several.
            labels: Names in the order of their ids; None for those of the file.

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

        Args:
            tokenizer: Of the language.
            records: As `read` gives them.
            task: The recipe's section.
            max_length: Most tokens of a sequence.
            separators: How many </s> the body that reads them has between two texts
                (BodyConfig.separators).
        """

    # --- Model ---

    @abstractmethod
    def module(self, config: BodyConfig, vocab_size: int, labels: Labels) -> TaskModel:
        """Return the kind's model, head and body, with fresh weights.

        Args:
            config: Of the body.
            vocab_size: Rows of the embeddings.
            labels: Names in the order of their ids; None for a kind without labels.
        """

    # --- Scores ---

    @abstractmethod
    def score(self, task: C, language: str, records: R, encoded: E, logits: Logits) -> Scores:
        """Return the scores of a test file.

        Args:
            task: The recipe's section.
            language: Of the file.
            records: As `read` gives them.
            encoded: As `encode` gives them.
            logits: Outputs of the model, in batches.

        Returns:
            {"score": what reports show, and further columns of scores.json}.
        """

    @abstractmethod
    def metric(self, task: C) -> str:
        """Return the name of the metric that "score" is, for the titles of tables."""

    def compressed(self, task: C, language: str) -> float | None:
        """Return the bits per byte that xz, which knows no language, takes for a test file.

        None where the kind counts no bits.
        """
        return None


class FinetunedKind(TaskKind[R, E, F]):
    """A kind of task with a head that is finetuned on a training file."""

    # End of the name of transformers' class: "ForSequenceClassification".
    hugging_face_class: ClassVar[str]
    # {module of the head: its name in transformers' RoBERTa}
    head_names: ClassVar[dict[str, str]]

    @abstractmethod
    def labels(self, task: F, source: str) -> Labels:
        """Return the names of the labels in the order of their ids.

        They are the recipe's, else the training file's; None for a kind without labels.

        Args:
            task: The recipe's section.
            source: Language of the training file.
        """

    def check_files(self, task: F, source: str) -> None:
        """Check also the training and development files, and all labels.

        Raises:
            UserError: A file cannot be used, or has a label that the task does not have.
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
