"""Tables, curves and costs of all that was evaluated -> one page."""

import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from ds_minimodel.artifacts.models import identity
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.common.extras import import_extra
from ds_minimodel.common.files import Stored, read_manifest, read_model
from ds_minimodel.config.schema import Recipe
from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.changes import Changes
from ds_minimodel.evaluation.comparison import Kept
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.fertility import fertility
from ds_minimodel.pipeline.layout import WorkdirLayout, command_of
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.records import Job, is_complete, record_of
from ds_minimodel.pipeline.registry import STEPS, RunsOn
from ds_minimodel.pipeline.training import seeds_of_task
from ds_minimodel.report import curves
from ds_minimodel.report.page import write_report
from ds_minimodel.text.corpus import Corpus

_MOST_REPEATED = 0.05  # of a text's lines, without a warning
_EVALUATE = "delete its folder and run the step again"


class _TrainingRun(Stored):
    """What the page names of a training run's run.json."""

    world_size: int
    zero_stage: int
    precision: str
    device: str
    torch: str


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    needed = [
        job for step in STEPS.values() if step.runs_on is RunsOn.RANKS for job in step.jobs(recipe)
    ]
    make = partial(_write, recipe, context.layout, needed)
    parents = [job.folder for job in needed]
    return [Job(context.layout.report(), {}, parents, make, has_record=False)]


def _write(recipe: Recipe, layout: WorkdirLayout, needed: Sequence[Job]) -> None:
    """Write the report of a run, and say what it says first.

    needed: all jobs that it is made from; UserError where one is not complete.
    """
    import_extra("matplotlib", "report")
    for job in needed:
        if not is_complete(job):
            raise UserError(
                f"{job.folder}: not complete; run that step first, or {command_of(job.folder)}"
            )
    extends = recipe.num_base and not recipe.learns_from_pairs
    finished = max(record_of(job.folder).stat().st_mtime for job in needed)
    results = curves.RunResults(
        recipe,
        _facts(recipe, layout, finished),
        {name: KINDS[task.kind].metric(task) for name, task in recipe.finetune.tasks.items()},
        list(_scores(recipe, layout)),
        list(_losses(recipe, layout)),
        fertility(recipe) if extends else [],
        dict(_compressed(recipe) if recipe.base else ()),
        dict(_kept(recipe, layout)),
        dict(_changes(recipe, layout)),
    )
    for line in [f"{layout.report()}/report.html", *write_report(layout.report(), results)]:
        print(printable(line), file=sys.stderr)


def _compressed(recipe: Recipe) -> Iterator[tuple[tuple[str, str], float]]:
    for name, task in recipe.finetune.tasks.items():
        for language in {*task.test}.intersection(recipe.languages.targets):
            if (bits := KINDS[task.kind].compressed(task, language)) is not None:
                yield (name, language), bits


def _kept(recipe: Recipe, layout: WorkdirLayout) -> Iterator[tuple[tuple[str, str], Kept]]:
    for system, language in product(recipe.chosen_systems, recipe.languages.targets):
        path = layout.kept(system, language)
        pack = layout.adapt(system, language) / "pack"
        if path.exists():
            kept = read_model(path, Kept, "delete that file")
            strength = recipe.adapt.of(system).strength
            if (kept.pack, kept.strength) == (identity(pack), strength):  # else of another training
                yield (system.name, language), kept


def _changes(recipe: Recipe, layout: WorkdirLayout) -> Iterator[tuple[tuple[str, str], Changes]]:
    for system, language in product(recipe.chosen_systems, recipe.languages.targets):
        path = layout.changes(system, language)
        pack = layout.adapt(system, language) / "pack"
        if path.exists():
            changes = read_model(path, Changes, "delete that file")
            if changes.pack == identity(pack):  # else of another training
                yield (system.name, language), changes


def _scores(recipe: Recipe, layout: WorkdirLayout) -> Iterator[curves.Row]:
    for system, name in product(recipe.chosen_systems, recipe.finetune.tasks):
        for language, seed in product(
            sorted(recipe.languages_of_task(name)), seeds_of_task(recipe, name)
        ):
            folder = layout.evaluate(recipe.scored_as(system, language), language, name, seed)
            read_manifest(folder, verify=True)
            for row in read_model(folder / curves.SCORES_FILE, list[curves.ScoreRow], _EVALUATE):
                yield {**row.model_dump(), "system": system.name}


def _facts(recipe: Recipe, layout: WorkdirLayout, finished: float) -> Mapping[str, str]:
    """{label: text} for the head of the page. finished: time of the last result."""
    model = recipe.model
    adapt = recipe.adapt
    path = layout.adapt(recipe.chosen_systems[0], recipe.languages.targets[0]) / "run/run.json"
    run = (
        read_model(path, _TrainingRun, "put it back from a copy, or delete it")
        if path.is_file()
        else None
    )
    how = run and (
        f"{run.world_size} rank(s), ZeRO {run.zero_stage}, {run.precision}, {run.device}, "
        f"torch {run.torch}"
    )
    origin = {
        "Body": (
            f"taken over from {Path(recipe.base or '').name}; what its pretraining took is not "
            "known"
        )
    }
    seeds = f"{recipe.finetune.seeds} finetuning seeds; " if recipe.finetune.finetuned_tasks else ""
    return {
        "Recipe": recipe.name or "not from a file",
        "Results of": datetime.datetime.fromtimestamp(finished, datetime.UTC).date().isoformat(),
        "Languages": f"{recipe.languages.source} to {', '.join(recipe.languages.targets)}",
        **_text(recipe, layout),
        "Model": (
            f"{model.num_layers} layers, hidden size {model.hidden_size}, vocabulary "
            f"{_vocabulary(recipe)}"
        )
        + (f"; mini-models of depth {recipe.mini.depth}" if recipe.reads_mini_depth else ""),
        "Step 2": f"{adapt.steps:,} updates of {adapt.batch_size} x {adapt.seq_length} tokens, "
        f"{adapt.steps * adapt.batch_size * adapt.seq_length:,} in all",
        **({"Run": f"{seeds}adapted on {how}"} if run else {}),
        **(origin if recipe.base else {}),
    }


def _text(recipe: Recipe, layout: WorkdirLayout) -> dict[str, str]:
    """Return names and sizes of the target languages' text and pairs, and whether what is held out
    is new to training.
    """
    lines = {}
    for language in recipe.data.pairs:
        pairs = PairCorpus(layout.pairs(language))
        named = [f"{len(text.pairs):,} of {text.name}" for text in pairs.training]
        lines[f"Pairs, {language}"] = f"{', '.join(named)}; {len(pairs.lines):,} are lines"
    for language in recipe.languages.targets:
        if language not in recipe.languages_of_corpora:
            continue
        facts = Corpus(layout.corpus(language)).facts
        lines[f"Text, {language}"] = (
            f"{', '.join(facts.text)}: {facts.bytes[0]:,} bytes, {facts.bytes[1]:,} held out"
        )
        if facts.repeated_lines > _MOST_REPEATED and recipe.data.held_out:
            lines[f"Warning, {language}"] = (
                f"{facts.repeated_lines:.0%} of the lines are repetitions, so that held-out text "
                "shares lines with the "
                "training text, and its scores are better than those of new text"
            )
    return lines


def _vocabulary(recipe: Recipe) -> str:
    new = recipe.tokenizer.vocab_size
    return f"{recipe.num_base + new:,}, of which {new:,} are new" if recipe.num_base else f"{new:,}"


def _losses(recipe: Recipe, layout: WorkdirLayout) -> Iterator[curves.Row]:
    source = recipe.languages.source
    for system in recipe.chosen_systems:
        runs = [("pretrain", layout.pretrain(system), source)]
        runs += [("build-mini", layout.build_mini(system), source)] if system.builds_mini else []
        runs += [
            ("adapt", layout.adapt(system, language), language)
            for language in recipe.languages.targets
        ]
        for stage, folder, language in runs:
            if row := curves.read_losses(
                folder / "run/metrics.jsonl", system.name, stage, language
            ):
                yield row
