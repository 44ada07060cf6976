"""Tasks, with a file of labels, answers or plain text: one object for each kind.

A task's life: `read` a file into records -> `encode` into Examples -> TaskSampler or
inference_batches (batches.py) -> the kind's `module` -> `score`. kind.py has the interface.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.evaluation.classification import (
    Classification,
    ClassificationConfig,
    Pair,
    PairConfig,
)
from ds_minimodel.evaluation.kind import FinetunedKind, TaskKind
from ds_minimodel.evaluation.labels import (
    RightLabel,
    RightLabelConfig,
    SameLabel,
    SameLabelConfig,
)
from ds_minimodel.evaluation.likelihood import (
    Hidden,
    HiddenConfig,
    Text,
    TextConfig,
)
from ds_minimodel.evaluation.qa import QuestionAnswering, QuestionConfig
from ds_minimodel.evaluation.retrieval import Retrieval, RetrievalConfig

if TYPE_CHECKING:
    from ds_minimodel.artifacts.models import BodyArtifact

# A kind of task is one of these and what its file says.
KINDS: dict[str, TaskKind[Any, Any, Any]] = {
    kind.name: kind
    for kind in (
        Classification(),
        Pair(),
        QuestionAnswering(),
        Text(),
        Hidden(),
        Retrieval(),
        RightLabel(),
        SameLabel(),
    )
}
# What a recipe says of a task, by its kind.
AnyTask = Annotated[
    ClassificationConfig
    | PairConfig
    | QuestionConfig
    | TextConfig
    | HiddenConfig
    | RetrievalConfig
    | RightLabelConfig
    | SameLabelConfig,
    Field(discriminator="kind"),
]
# Those that are finetuned; the others are scored with the body as it is.
FINETUNED = {name: kind for name, kind in KINDS.items() if isinstance(kind, FinetunedKind)}


def task_of(folder: str | Path, model: BodyArtifact) -> tuple[FinetunedKind, list[str] | None]:
    """Return (kind, labels) of the task model in `folder`.

    Raises:
        UserError: There is no such kind, or it has no such labels or head.
    """
    import torch

    from ds_minimodel.artifacts.models import check_task_model

    assert model.task is not None
    name = model.task["kind"]
    labels = model.task["labels"]
    where = Path(folder) / "config.json"
    if name not in FINETUNED:
        raise UserError(f"{where}: task.kind: {name!r:.40} is none of {', '.join(FINETUNED)}")
    kind = FINETUNED[name]
    has_repeated = labels and len({*labels}) < len(labels)
    if kind.has_labels != bool(labels) or has_repeated:
        taken = "names, each once" if kind.has_labels else "none"
        raise UserError(f"{where}: task.labels: {name} takes {taken}")
    with torch.device("meta"):
        check_task_model(kind.module(model.config, 2, labels), model, folder)
    return kind, labels
