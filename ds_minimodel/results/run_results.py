"""Results of one pipeline run, kept in its report folder as run.json, for reports over several runs.

The folder is enough: it can be copied away from the machine that the run was made on. This run.json is not the
one that the engine leaves in every training folder (`run/run.json`: settings, ranks, device and versions of one
training run).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Amount,
    Count,
    NameInside,
    Sha256,
    Stored,
    read_json,
    read_model,
    sha256_of_json,
    write_json,
)
from ds_minimodel.common.sections import OneOf
from ds_minimodel.results.curves import BaselineRow, Row, ScoreRow
from ds_minimodel.results.losses import DevelopmentRow, LossRow
from ds_minimodel.systems import SYSTEMS

RESULTS_FILE, SCORES_FILE, EXAMPLES_FILE = "run.json", "scores.json", "examples.json"
REPORT = "report"  # folder of a workdir


@dataclass(frozen=True)
class RunResults:
    """Results of one recipe in one workdir.

    name     what it is called on the page
    recipe   the recipe as JSON
    data     {what: identity} of base (None: pretrained), text and training data: what else decides results
    tests    {task: {"metric": name of its score, "is_finetuned", "files": {language: identity of the test data}}}
    scores   rows of curves.py, all languages, the source language too
    costs    rows of recipe_costs (recipe/costs.py)
    baselines  rows {"baseline", "task", "language", "score"}, with "reason" where the score is None
    losses   rows of losses.py
    facts    {label: text} about device and versions
    development  rows of losses.py on development files
    examples  {"system", "task", "language", and what TaskKind.examples gives} of the last packs and first seeds
    records  {path below the workdir: hash} of the records of all jobs that this was made from
    """

    name: str
    recipe: dict[str, Any]
    data: dict[str, str | None]
    tests: dict[str, dict[str, Any]]
    scores: Sequence[Row]
    costs: Sequence[Row]
    baselines: Sequence[Row]
    losses: Sequence[LossRow]
    facts: dict[str, str]
    records: dict[str, str]
    examples: Sequence[Row] = field(default_factory=list)
    development: Sequence[DevelopmentRow] = field(default_factory=list)

    @property
    def source(self) -> str:
        """Source language."""
        return self.recipe["languages"]["source"]

    @property
    def target_scores(self) -> list[Row]:
        """Scores in the target languages."""
        return [row for row in self.scores if row["language"] != self.source]

    @property
    def source_scores(self) -> list[Row]:
        """Scores in the source language."""
        return [row for row in self.scores if row["language"] == self.source]


class _CostRow(Stored):
    system: str
    step: str
    formula_eflops: Amount | None
    executed_eflops: Amount | None
    v100_days: Amount | None


class _Test(Stored):
    metric: str
    is_finetuned: bool = True
    files: dict[str, list[str]]


class _Languages(Stored):
    source: str
    targets: list[str]


class _Mini(Stored):
    depth: Count


class _Adapt(Stored):
    depth_schedule: list[Any]


class _Recipe(Stored):
    """The keys of a recipe that reports name; the others they compare alone."""

    seed: Annotated[int, Field(ge=0)]
    systems: list[Annotated[str, OneOf(SYSTEMS)]]
    adapt: _Adapt
    languages: _Languages
    mini: _Mini


class ExamplesRow(Stored):
    """What TaskKind.examples gives, in a file."""

    labels: list[str]
    confusion: list[list[Count]]
    predictions: list[Annotated[list[str], Field(min_length=3, max_length=3)]]


class _Run(Stored):
    """Structure of run.json."""

    model_config = ConfigDict(extra="forbid")

    recipe: _Recipe
    data: dict[str, Any]
    tests: dict[str, _Test]
    scores: list[ScoreRow]
    costs: list[_CostRow]
    baselines: list[BaselineRow]
    losses: list[LossRow]
    facts: dict[str, str]
    records: dict[NameInside, Sha256]
    examples: list[ExamplesRow] = []
    development: list[DevelopmentRow] = []

    @model_validator(mode="after")
    def _rows_are_of_the_run(self) -> Self:
        if "base" not in self.data:
            raise ValueError("data: base is missing")
        systems = {row.system for row in self.scores} | {row.system for row in self.costs}
        systems |= {row["system"] for row in (*self.losses, *self.development)}
        tasks = {row.task for row in self.scores} | {row.task for row in self.baselines}
        tasks |= {row["task"] for row in self.development}
        strange = [*(systems - set(self.recipe.systems)), *(tasks - self.tests.keys())]
        if strange:
            raise ValueError(f"rows of {strange[0]!r:.80}, which is no system or task of the run")
        return self


def write_run_results(run: RunResults, folder: Path) -> None:
    """Write run.json into a report folder."""
    write_json(folder / RESULTS_FILE, {key: value for key, value in asdict(run).items() if key != "name"})


def read_run_results(workdir: str | Path, name: str) -> RunResults:
    """Results of the run in `workdir`; UserError where it has no finished report, or one older than its results."""
    workdir = Path(workdir)
    path = workdir / REPORT / RESULTS_FILE
    if not path.is_file():
        raise UserError(
            f"{workdir}: no finished run ({path} is missing); finish it with `ds-minimodel run`, "
            "or make its report with `ds-minimodel report`"
        )
    advice = "damaged, or written by another version; make the report again with `ds-minimodel report`"
    values = read_model(path, _Run, advice).model_dump(exclude_unset=True)
    for record, digest in values["records"].items():
        if (workdir / record).is_file() and sha256_of_json(read_json(workdir / record)) != digest:
            raise UserError(
                f"{workdir}: its report is older than its results ({record} has changed since); "
                "bring it up to date with `ds-minimodel run` or `ds-minimodel report`"
            )
    return RunResults(name, **values)
