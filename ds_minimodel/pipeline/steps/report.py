"""Write tables, curves and costs of all that was evaluated as one page."""

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

_MAX_REPEATED = 0.05  # share of a text's lines that may be repetitions without a warning
_EVALUATE = "delete its folder and run the step again"


class _TrainingRun(Stored):
    """Facts of a training run's run.json that the page names."""

    world_size: int
    zero_stage: int
    precision: str
    device: str
    torch: str


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return the one job, which writes the report."""
    needed = [
        job for step in STEPS.values() if step.runs_on is RunsOn.RANKS for job in step.jobs(recipe)
    ]
    make = partial(_write, recipe, context.layout, needed)
    parents = [job.folder for job in needed]
    return [Job(context.layout.report(), {}, parents, make, has_record=False)]


def _write(recipe: Recipe, layout: WorkdirLayout, needed: Sequence[Job]) -> None:
    """Write the report of a run, and say what it says first.

    Args:
        recipe: Of the run.
        layout: Of its workdir.
        needed: All jobs that the report is made from.

    Raises:
        UserError: One of them is not complete.
    """
    import_extra("matplotlib", "report")
    for job in needed:
        if not is_complete(job):
            raise UserError(
                f"{job.folder}: not complete; run that step first, or {command_of(job.folder)}"
            )
    extends = recipe.num_base and not recipe.learns_from_pairs
    finished = max(record_of(job.folder).stat().st_mtime for job in needed)
    tasks = recipe.finetune.tasks
    results = curves.RunResults(
        recipe=recipe,
        facts=_facts(recipe, layout, finished),
        metrics={name: KINDS[task.kind].metric(task) for name, task in tasks.items()},
        scores=list(_scores(recipe, layout)),
        losses=list(_losses(recipe, layout)),
        fertility=fertility(recipe) if extends else [],
        compressed=dict(_compressed(recipe)) if recipe.base else {},
        kept=dict(_kept(recipe, layout)),
        changes=dict(_changes(recipe, layout)),
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
            # The file may be of another training.
            if (kept.pack, kept.strength) == (identity(pack), strength):
                yield (system.name, language), kept


def _changes(recipe: Recipe, layout: WorkdirLayout) -> Iterator[tuple[tuple[str, str], Changes]]:
    for system, language in product(recipe.chosen_systems, recipe.languages.targets):
        path = layout.changes(system, language)
        pack = layout.adapt(system, language) / "pack"
        if path.exists():
            changes = read_model(path, Changes, "delete that file")
            # The file may be of another training.
            if changes.pack == identity(pack):
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
    """Return {label: text} for the head of the page; `finished` is the time of the last result."""
    model = recipe.model
    adapt = recipe.adapt
    source = recipe.languages.source
    size = (
        f"{model.num_layers} layers, hidden size {model.hidden_size}, vocabulary "
        f"{_vocabulary(recipe)}"
    )
    if recipe.reads_mini_depth:
        size += f"; mini-models of depth {recipe.mini.depth}"
    tokens = adapt.steps * adapt.batch_size * adapt.seq_length
    facts = {
        "Recipe": recipe.name or "not from a file",
        "Results of": datetime.datetime.fromtimestamp(finished, datetime.UTC).date().isoformat(),
        "Languages": f"{source} to {', '.join(recipe.languages.targets)}",
        **_text(recipe, layout),
        "Model": size,
        "Step 2": (
            f"{adapt.steps:,} updates of {adapt.batch_size} x {adapt.seq_length} tokens, "
            f"{tokens:,} in all"
        ),
    }
    path = layout.adapt(recipe.chosen_systems[0], recipe.languages.targets[0]) / "run/run.json"
    if path.is_file():
        run = read_model(path, _TrainingRun, "put it back from a copy, or delete it")
        seeds = ""
        if recipe.finetune.finetuned_tasks:
            seeds = f"{recipe.finetune.seeds} finetuning seeds; "
        facts["Run"] = (
            f"{seeds}adapted on {run.world_size} rank(s), ZeRO {run.zero_stage}, {run.precision}, "
            f"{run.device}, torch {run.torch}"
        )
    if recipe.base:
        facts["Body"] = (
            f"taken over from {Path(recipe.base).name}; what its pretraining took is not known"
        )
    return facts


def _text(recipe: Recipe, layout: WorkdirLayout) -> dict[str, str]:
    """Return names and sizes of the target languages' text and pairs, for the head of the page.

    A line warns where what is held out is not new to training.
    """
    lines = {}
    for language in recipe.data.pairs:
        pairs = PairCorpus(layout.pairs(language))
        named = [f"{len(text.pairs):,} of {text.name}" for text in pairs.training]
        lines[f"Pairs, {language}"] = (
            f"{', '.join(named)}; {len(pairs.lines):,} long enough to train on"
        )
    for language in recipe.languages.targets:
        if language not in recipe.languages_of_corpora:
            continue
        facts = Corpus(layout.corpus(language)).facts
        lines[f"Text, {language}"] = (
            f"{', '.join(facts.text)}: {facts.bytes[0]:,} bytes, {facts.bytes[1]:,} held out"
        )
        if facts.repeated_lines > _MAX_REPEATED and recipe.data.held_out:
            lines[f"Warning, {language}"] = (
                f"{facts.repeated_lines:.0%} of the lines are repetitions, so that held-out text "
                "shares lines with the training text, and its scores are better than those of new "
                "text"
            )
    return lines


def _vocabulary(recipe: Recipe) -> str:
    new = recipe.tokenizer.vocab_size
    if recipe.num_base:
        return f"{recipe.num_base + new:,}, of which {new:,} are new"
    return f"{new:,}"


def _losses(recipe: Recipe, layout: WorkdirLayout) -> Iterator[curves.Row]:
    source = recipe.languages.source
    for system in recipe.chosen_systems:
        runs = [("pretrain", layout.pretrain(system), source)]
        if system.builds_mini:
            runs.append(("build-mini", layout.build_mini(system), source))
        for language in recipe.languages.targets:
            runs.append(("adapt", layout.adapt(system, language), language))
        for stage, folder, language in runs:
            if row := curves.read_losses(
                folder / "run/metrics.jsonl", system.name, stage, language
            ):
                yield row
