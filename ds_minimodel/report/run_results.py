"""Results of one run that its report is made of, and the structure of the files that they are read from.

A score row is {"system", "task", "language", "seed", "step", "eflops", "score"}: the score of one finetuning seed with
the pack that step 2 had after `step` updates, which had cost `eflops` by then; percent, but of the kind `text`, whose
bytes in 100 bits have no end. Further columns are further scores of its kind of task, such as "exact_match".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from ds_minimodel.common.files import Amount, Count, Stored
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.report.losses import DevelopmentRow, LossRow

SCORES_FILE, EXAMPLES_FILE = "scores.json", "examples.json"

Row = Mapping[str, Any]  # of scores, costs or references, as JSON holds it


class ScoreRow(Stored):
    """A score row in a file."""

    __pydantic_extra__: dict[str, Amount]

    system: str
    task: str
    language: str
    seed: Annotated[int, Field(ge=0)]
    step: Count
    eflops: Amount
    score: Amount


class BaselineRow(Stored):
    """Score of a reference in a file, or the reason why there is none."""

    baseline: str
    task: str
    language: str
    score: Amount | None
    reason: str | None = None


class ExamplesRow(Stored):
    """What TaskKind.examples gives, in a file."""

    labels: list[str]
    confusion: list[list[Count]]
    predictions: list[Annotated[list[str], Field(min_length=3, max_length=3)]]


def further_columns(rows: Iterable[Row]) -> list[str]:
    """Names of the further scores in score rows, in the order of the alphabet."""
    return sorted({name for row in rows for name in row} - ScoreRow.model_fields.keys())


@dataclass(frozen=True)
class RunResults:
    """Results of a recipe in its workdir.

    facts: {label: text} about recipe, device and versions. metrics: {task: name of its score}. scores: of all languages
    and steps with every seed. baselines: rows as of BaselineRow. losses, development: rows of losses.py. examples:
    {"system", "task", "language", and what ExamplesRow has} of the last packs and first seeds.
    """

    recipe: Recipe
    facts: Mapping[str, str]
    metrics: Mapping[str, str]
    scores: Sequence[Row]
    baselines: Sequence[Row]
    losses: Sequence[LossRow]
    development: Sequence[DevelopmentRow] = field(default_factory=list)
    examples: Sequence[Row] = field(default_factory=list)

    @property
    def target_scores(self) -> list[Row]:
        """Scores in the target languages."""
        return [row for row in self.scores if row["language"] != self.recipe.languages.source]

    @property
    def source_scores(self) -> list[Row]:
        """Scores in the source language."""
        return [row for row in self.scores if row["language"] == self.recipe.languages.source]
