"""Tables, curves and costs of all that was evaluated, in one run or in several -> one page.

Its jobs score each task's references, which need no language model; the page is written anew whenever it is asked for.
"""

import datetime
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Manifest,
    Stored,
    atomic_folder,
    read_artifact,
    read_json,
    read_model,
    sha256_of_json,
    write_json,
    write_manifest,
)
from ds_minimodel.common.names import check_label
from ds_minimodel.jobs.layout import WorkdirLayout
from ds_minimodel.jobs.records import Job, log_of, read_record, record_of
from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.results.curves import BaselineRow, Row, ScoreRow
from ds_minimodel.results.losses import DevelopmentRow, LossRow, read_development, read_losses
from ds_minimodel.results.page import write_report
from ds_minimodel.results.run_results import EXAMPLES_FILE, SCORES_FILE, ExamplesRow, RunResults, read_run_results
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import seeds_of_task, task_inputs
from ds_minimodel.systems import System
from ds_minimodel.tasks import FINETUNED, KINDS

BASELINES_FILE = "baselines.json"
_EVALUATE = "delete its folder and run the step again"


class _Scores(Manifest):
    noun = "scores"
    kinds = ("scores",)
    required = ((SCORES_FILE,),)


class _Baselines(Manifest):
    noun = "reference scores"
    kinds = ("baselines",)
    required = ((BASELINES_FILE,),)


class _TrainingRun(Stored):
    """What the page names of a training run's run.json."""

    world_size: int
    zero_stage: int
    precision: str
    device: str
    torch: str


def jobs(context: Context) -> list[Job]:
    """Jobs that score a task's references in a target language."""
    recipe, layout = context.recipe, context.layout
    found = []
    for folder, name, language in _references(recipe, layout):
        task = recipe.finetune.tasks[name]
        inputs = {
            "task": task_inputs(recipe, name, [*task.training_files, *task.test_files(language)]),
            "languages": [recipe.languages.source, language],
        }
        found.append(Job(folder, inputs, (), partial(_score_references, recipe, name, language, folder)))
    return found


def _references(recipe: Recipe, layout: WorkdirLayout) -> Iterator[tuple[Path, str, str]]:
    """(folder, task, language) of each job; references are zero-shot, so that the source has none."""
    for name, task in recipe.finetune.tasks.items():
        for language in task.test:
            if language in recipe.languages.targets:
                yield layout.references(language, name), name, language


def _score_references(recipe: Recipe, name: str, language: str, out: Path) -> None:
    task = recipe.finetune.tasks[name]
    scores = KINDS[task.kind].references(task, {language: task.test[language]}, recipe.languages.source)
    rows = [
        {"baseline": reference, "task": name, "language": language}
        | ({"score": None, "reason": found} if isinstance(found, str) else {"score": found[language]})
        for reference, found in scores.items()
    ]
    with atomic_folder(out) as folder:
        write_json(folder / BASELINES_FILE, rows)
        write_manifest(folder, kind="baselines")


def write(recipe: Recipe, layout: WorkdirLayout, needed: Iterable[Job]) -> Path:
    """Write the report of one run and return its folder. needed: all jobs that it is made from, complete."""
    write_report(layout.report(), [_results(recipe, layout, needed)])
    return layout.report()


def write_joint(layout: WorkdirLayout, others: Sequence[str]) -> Path:
    """Write the report over the run in `layout`, which has its own report, and those in `others`; its folder.

    others: workdirs, each as RUN or LABEL=RUN. UserError where one is not finished, stale, or does not
    compare.
    """
    runs = [read_run_results(workdir, name) for name, workdir in named_runs(layout, others)]
    write_report(layout.joint_report(), runs)
    return layout.joint_report()


def named_runs(layout: WorkdirLayout, others: Sequence[str]) -> list[tuple[str, Path]]:
    """(name, workdir) of the run in `layout` and of the `others`, as above; UserError for one that cannot be shown."""
    runs = [(_name_of(layout.root), layout.root)]
    for text in others:
        label, equals, workdir = text.partition("=")
        runs.append((label, Path(workdir)) if equals else (_name_of(Path(text)), Path(text)))
        try:
            check_label(runs[-1][0])
        except ValueError as error:
            raise UserError(f"--with {text}: {error}; write --with LABEL=RUN") from None
    return runs


def _name_of(workdir: Path) -> str:
    return os.path.basename(os.path.abspath(workdir))


def _results(recipe: Recipe, layout: WorkdirLayout, needed: Iterable[Job]) -> RunResults:
    scores: list[Row] = []
    references: list[Row] = []
    for folder, _, _ in _references(recipe, layout):
        read_artifact(folder, _Baselines, verify=True)
        rows_there = read_model(folder / BASELINES_FILE, list[BaselineRow], _EVALUATE)
        references += [row.model_dump() for row in rows_there]
    for system in recipe.chosen_systems:
        for name in recipe.finetune.tasks:
            for language, seed in product(sorted(recipe.languages_of_task(name)), seeds_of_task(recipe, name)):
                scores += _scores_in(layout.evaluate(system, language, name, seed), system, name, language, seed)
    paths = [record_of(job.folder) for job in needed]
    records = {str(path.relative_to(layout.root)): sha256_of_json(read_json(path)) for path in paths}
    return RunResults(
        _name_of(layout.root),
        recipe.model_dump(mode="json"),
        _data(recipe, layout),
        _tests(recipe),
        scores,
        recipe_costs(recipe),
        references,
        _losses(recipe, layout),
        _facts(recipe, layout, max(path.stat().st_mtime for path in paths)),
        records,
        _examples(recipe, layout),
        _development(recipe, layout),
    )


def _examples(recipe: Recipe, layout: WorkdirLayout) -> list[Row]:
    """What was kept of predictions in the target languages, of each task's first seed."""
    found: list[Row] = []
    for name, system in product(recipe.finetune.tasks, recipe.chosen_systems):
        for language in sorted({*recipe.languages_of_task(name)} - {recipe.languages.source}):
            path = layout.evaluate(system, language, name, seeds_of_task(recipe, name)[0]) / EXAMPLES_FILE
            if path.is_file():
                row = read_model(path, ExamplesRow, _EVALUATE).model_dump()
                found.append({"system": system.name, "task": name, "language": language, **row})
    return found


def _development(recipe: Recipe, layout: WorkdirLayout) -> list[DevelopmentRow]:
    """Scores of every finetuning on its development file."""
    rows = [
        DevelopmentRow(
            system=system.name,
            task=name,
            seed=seed,
            curve=read_development(log_of(layout.finetune(system, name, seed), "run/metrics.jsonl")),
        )
        for system, (name, task) in product(recipe.chosen_systems, recipe.finetune.finetuned_tasks.items())
        if task.dev
        for seed in seeds_of_task(recipe, name)
    ]
    return [row for row in rows if row["curve"]]


def _scores_in(folder: Path, system: System, task: str, language: str, seed: int) -> list[Row]:
    read_artifact(folder, _Scores, verify=True)
    path = folder / SCORES_FILE
    rows = read_model(path, list[ScoreRow], _EVALUATE)
    of_job = (system.name, task, language, seed)
    if any((row.system, row.task, row.language, row.seed) != of_job for row in rows):
        raise UserError(
            f"{path}: scores of another system, task, language or seed than {' '.join(map(str, of_job))}; {_EVALUATE}"
        )
    return [row.model_dump() for row in rows]


def _data(recipe: Recipe, layout: WorkdirLayout) -> dict[str, Any]:
    """Identities of the base, of the text that each language's tokens were made from, of the training data."""
    found = {"base": _inputs(layout.pretrain(recipe.chosen_systems[0])).get("base")}
    for language in recipe.languages_of_text:
        inputs = {**_inputs(layout.tokens(language)), "parents": None}
        found[f"text of {language}"] = sha256_of_json(inputs)[:16]
    for name in recipe.finetune.finetuned_tasks:
        found[f"training data of {name}"] = task_inputs(recipe, name, recipe.finetune.files_of(name))["files"]
    return found


def _inputs(folder: Path) -> dict[str, Any]:
    """What the job that lies in `folder` was made from."""
    record = read_record(folder)
    if record is None:
        raise UserError(f"{record_of(folder)}: missing; put it back from a copy")
    return record.inputs


def _tests(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """For each task what its scores are, and the identity of each language's test data."""
    found = {}
    for name, task in recipe.finetune.tasks.items():
        found[name] = {
            "metric": KINDS[task.kind].metric(task, recipe.languages.source),
            "is_finetuned": task.kind in FINETUNED,
            "files": {
                language: task_inputs(recipe, name, task.test_files(language))["files"] for language in task.test
            },
        }
    return found


def _facts(recipe: Recipe, layout: WorkdirLayout, finished: float) -> dict[str, str]:
    """{label: text} for the head of the page. finished: time of the last result."""
    first = layout.adapt(recipe.chosen_systems[0], recipe.languages.targets[0])
    advice = "put it back from a copy, or delete the folder of its job and run the step again"
    model, run = recipe.model, read_model(log_of(first, "run/run.json"), _TrainingRun, advice)
    origin = (
        {}
        if recipe.base is None
        else {"Body": f"taken over from {Path(recipe.base).name}; what its pretraining took is not known"}
    )
    seeds = f"{recipe.finetune.seeds} finetuning seeds; " if recipe.finetune.finetuned_tasks else ""
    return {
        "Recipe": recipe.name or "not from a file",
        "Results of": datetime.datetime.fromtimestamp(finished, datetime.UTC).date().isoformat(),
        "Languages": f"{recipe.languages.source} to {', '.join(recipe.languages.targets)}",
        "Model": f"{model.num_layers} layers, hidden size {model.hidden_size}, vocabulary "
        f"{recipe.tokenizer.vocab_size:,}; mini-models of depth {recipe.mini.depth}",
        "Step 2": f"{recipe.adapt.steps:,} updates of {recipe.adapt.batch_size} x {recipe.adapt.seq_length} tokens",
        "Run": f"{seeds}adapted on {run.world_size} rank(s), "
        f"ZeRO {run.zero_stage}, {run.precision}, {run.device}, torch {run.torch}",
        **origin,
    }


def _losses(recipe: Recipe, layout: WorkdirLayout) -> list[LossRow]:
    source = recipe.languages.source
    rows: list[LossRow | None] = []
    for system in recipe.chosen_systems:
        runs = [("pretrain", layout.pretrain(system), source)]
        runs += [("build-mini", layout.build_mini(system), source)] if system.builds_mini else []
        runs += [("adapt", layout.adapt(system, language), language) for language in recipe.languages.targets]
        rows += [
            read_losses(log_of(folder, "run/metrics.jsonl"), system.name, stage, language)
            for stage, folder, language in runs
        ]
    return [row for row in rows if row]
