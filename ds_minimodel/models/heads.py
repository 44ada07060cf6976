"""The declaration of finished heads, which read a model's last states and predict no tokens.

A body with one gives a vector or scores for each text. The head is part of the body's configuration
(`BodyConfig.head`), its weights are the body's under `heads.DEPTH.`, and `models/sentence.py` has
its modules. Read without torch, as kinds of body are.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ds_minimodel.common.config import Length, Section, Size

Pooling = Literal["mean", "cls"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid"]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Projection(Section):
    """A linear layer over a pooled vector."""

    outputs: Size
    """Width of the result."""
    bias: bool = True
    activation: Activation = "identity"


class Prompt(Section):
    """Text that a model expects before others of one use, such as "query: "."""

    name: str
    text: str


class FinishedHead(Section):
    """What both kinds of finished head have."""

    pooling: Pooling
    """What of the last states is read: their mean, or the first one."""
    max_length: Length
    """Tokens of the longest text, with those that frame it; longer ones are cut."""

    # How the name of transformers' class ends.
    hugging_face_class: ClassVar[str]

    def outputs(self, hidden_size: int) -> int:
        """Return the count of numbers that it gives for a text, over states of `hidden_size`."""
        raise NotImplementedError

    def prompt(self, *names: str) -> str:
        """Return the text of the first of these prompts that there is.

        Where there is none, it is that of the default prompt, else nothing.
        """
        return ""

    def share_read(self, length: int) -> float:
        """Return the share of the positions of a text of `length` tokens that are read."""
        return 1.0 if self.pooling == "mean" else 1 / length


class SentenceHead(FinishedHead):
    """A sentence's vector, as sentence-transformers has it."""

    kind: Literal["sentence"] = "sentence"
    projections: Annotated[tuple[Projection, ...], Field(strict=False)] = ()
    normalises: bool = False
    """Whether vectors have length 1."""
    prompts: Annotated[tuple[Prompt, ...], Field(strict=False)] = ()
    """Those that the model was trained with."""
    pools_prompt: bool = True
    """Whether a prompt's tokens are pooled like a text's."""
    default_prompt: str | None = None
    """Name of the one that it puts before every text, where nothing else is said."""

    hugging_face_class: ClassVar[str] = "Model"

    def outputs(self, hidden_size: int) -> int:
        """Return the width of the vector."""
        return self.projections[-1].outputs if self.projections else hidden_size

    def prompt(self, *names: str) -> str:
        """Return the text of the first of these prompts that there is, or of the default one."""
        texts = {prompt.name: prompt.text for prompt in self.prompts}
        for name in (*names, self.default_prompt):
            if name is not None and name in texts:
                return texts[name]
        return ""


class LabelHead(FinishedHead):
    """Scores of labels: a finished classifier, or one number for a pair of texts (a cross-encoder).

    `applies`: one of the labels applies to a text, or each by itself, or there are none and the
    score is a number.
    """

    kind: Literal["labels"] = "labels"
    labels: Names
    """Their names in the order of the scores."""
    applies: Literal["one", "each", "number"] = "one"

    hugging_face_class: ClassVar[str] = "ForSequenceClassification"

    def outputs(self, hidden_size: int) -> int:
        """Return the count of labels."""
        return len(self.labels)


AnyHead = Annotated[SentenceHead | LabelHead, Field(discriminator="kind")]
