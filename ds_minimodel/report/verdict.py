"""Verdicts: a sentence for each system and language on its scores before and after, and its cost.

The page, the last lines of `run` and the cards of exports show them.
"""

import math
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from ds_minimodel.common.files import Count, Stored
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.systems import BASELINE, SYSTEMS
from ds_minimodel.evaluation.comparison import Measure
from ds_minimodel.report import curves
from ds_minimodel.report.render import duration
from ds_minimodel.report.tables import PERCENT, SCALES, adapt_costs, averages, retained

VERDICTS_FILE = "verdicts.json"
_WORSE = "worse than the untouched model: train longer or on more text, or leave the model as it is"
# Advice that keeps more of the source: where the body trains, and where only the pack does.
_KEEPS_OF_BODY = "raise adapt.replay in the recipe, or export-hf with a smaller --strength"
_KEEPS_OF_PACK = "raise adapt.new_token_penalty in the recipe, or lower adapt.lr"
MAX_SOURCE_LOSS = 1.0  # percent of the source's score that may be lost without a warning


class Verdict(Stored):
    """Results of a system in a language.

    Attributes:
        steps: Updates of the pack.
        clauses: {task: its scores before and after, in words}.
        measures: Of all tasks, and of the Kept.
        kept: Sentences of the Kept.
        worse: In what the untouched model is better, and what to do, a line each.
        cost: Of step 2, in words.
    """

    system: str
    language: str
    steps: Count
    clauses: dict[str, str]
    measures: list[Measure] = []
    kept: list[str] = []
    worse: list[str]
    cost: str

    def sentence(self, tasks: Collection[str]) -> str:
        """Return the results of these tasks, and the cost, in a sentence."""
        clauses = [clause for task, clause in self.clauses.items() if task in tasks]
        return f"{'; '.join([*clauses, self.cost])}."

    @property
    def opening(self) -> str:
        """The sentence of all tasks, with what became worse: what was won, and what was lost."""
        lost = [measure for measure in self.measures if measure.change < 0]
        named = [
            f"{measure.what} ({' to '.join(measure.texts)} {measure.unit})" for measure in lost
        ]
        worse = f"worse: {', '.join(named)}" if lost else "nothing that was scored is worse"
        return f"{self.sentence(self.clauses)[:-1]}; {worse}."

    @property
    def lines(self) -> list[str]:
        """The sentence of all tasks, those of the Kept, and the warnings."""
        lines = [self.sentence(self.clauses), *self.kept, *self.worse]
        return [f"{curves.name_of(self.system)}, {line}" for line in lines]


def verdicts_of(run: curves.RunResults) -> list[Verdict]:
    """Return the verdicts of a recipe with a base; without one there is nothing to compare with."""
    if not run.recipe.base:
        return []
    return [
        _verdict(run, system, language)
        for system in run.recipe.systems
        for language in run.recipe.languages.targets
    ]


def _verdict(run: curves.RunResults, system: str, language: str) -> Verdict:
    clauses: dict[str, str] = {}
    measures: list[Measure] = []
    worse: list[str] = []
    for task in run.metrics:
        of_task = _task_verdict(run, system=system, language=language, task=task)
        if of_task is not None:
            clauses[task] = of_task.clause
            measures += of_task.measures
            worse += of_task.worse
    kept = run.kept.get((system, language))
    if kept is not None:
        measures += kept.measures
        worse += kept.worse
    return Verdict(
        system=system,
        language=language,
        steps=run.recipe.adapt.steps,
        clauses=clauses or {"held-out text": _trained(run, system, language)},
        measures=measures,
        kept=[] if kept is None else kept.sentences,
        worse=worse,
        cost=_cost(run, system, language),
    )


class _TaskVerdict(NamedTuple):
    """Results of one task, as of Verdict."""

    clause: str
    measures: list[Measure]
    worse: list[str]


def _task_verdict(
    run: curves.RunResults, system: str, language: str, task: str
) -> _TaskVerdict | None:
    """Compare the untouched model's scores with those after training.

    They are compared in the language and in the source. The result is None where the task is not
    scored in the language.
    """
    steps = run.recipe.adapt.steps
    of_task = [row for row in run.scores if (row["system"], row["task"]) == (system, task)]
    rows = [row for row in of_task if (row["language"], row["step"]) == (language, steps)]
    if not rows:
        return None
    column, unit = curves.shown_score(rows[0], run.metrics[task])
    is_bits = column in curves.BITS
    best_of = SCALES.get(column, PERCENT).best
    # The task that `extend` adds has the name of its kind.
    is_held_out_text = is_bits and run.recipe.finetune.tasks[task].kind == task
    what = "held-out text" if is_held_out_text else task
    # A sentence names the task only where there are several.
    named = f", {task}" if len(run.metrics) > 1 else ""
    worse: list[str] = []

    target = Measure(
        what=f"{language}, {what}",
        unit=unit,
        before=_mean(rows, curves.OF_SOURCE + column),
        after=_mean(rows, column),
        decimals=3 if is_bits else 1,
    )
    measures = [target]
    before, after = target.texts
    clause = f"{language}{named}: {before} {unit} before, {after} after"
    if is_bits:
        clause += _compressed(run, task, language, bits=target.after)

    if curves.ON_SOURCE + column in rows[0]:
        source_language = run.recipe.languages.source
        source_rows = [row for row in of_task if row["language"] == source_language]
        source = Measure(
            what=f"{source_language}, {what}",
            unit=unit,
            before=_mean(source_rows, column),
            after=_mean(rows, curves.ON_SOURCE + column),
            decimals=target.decimals,
        )
        measures.append(source)
        before, after = source.texts
        clause += f"; {source_language}{named}: {before} before, {after} after"
        if curves.ON_SOURCE + "cut" in rows[0]:
            in_new_tokens = _mean(rows, curves.ON_SOURCE + "cut")
            clause += f", with {in_new_tokens:.1f} % of that text in new tokens"
        lost = 100 * abs(source.after / source.before - 1) if source.before else 0.0
        if lost > MAX_SOURCE_LOSS and source.after != best_of((source.before, source.after)):
            advice = _KEEPS_OF_BODY if SYSTEMS[system].trains else _KEEPS_OF_PACK
            worse.append(f"{source_language}{named}: {lost:.1f} % worse than before: {advice}.")
    if target.after != best_of((target.before, target.after)):
        worse.append(f"{clause}: {_WORSE}.")
    return _TaskVerdict(clause, measures, worse)


def _trained(run: curves.RunResults, system: str, language: str) -> str:
    """Return a clause on step 2 where no task has scored it."""
    for loss in run.losses:
        key = (loss["system"], loss["stage"], loss["language"])
        if key == (system, "adapt", language) and loss["held_out"]:
            first, before = loss["held_out"][0]
            last, after = loss["held_out"][-1]
            return (
                f"{language}, loss on held-out text: {before:.3f} nats per token after {first:,} "
                f"updates, {after:.3f} after {last:,}"
            )
    return f"{language}: {run.recipe.adapt.steps:,} updates, after which nothing was scored"


def _compressed(run: curves.RunResults, task: str, language: str, bits: float) -> str:
    """Return what xz, which knows no language, takes, in brackets."""
    xz = run.compressed.get((task, language))
    if xz is None:
        return ""
    better = ", which is better" if xz < bits else ""
    return f" (xz compresses it to {xz:.3f}{better})"


def _cost(run: curves.RunResults, system: str, language: str) -> str:
    """Return time, memory and FLOPs of a training, with that of its mini-model, in words.

    FLOPs are those that are executed, as a share of those of training all weights.
    """
    costs = recipe_costs(run.recipe.model_copy(update={"systems": [system, "full"]}))
    of_system = {row["step"]: row["executed_eflops"] for row in costs if row["system"] == system}
    spent = sum(of_system.values())
    of_all_weights = sum(row["executed_eflops"] for row in costs if row["system"] == "full")
    if not of_all_weights:
        return "no training"
    share = f"{100 * spent / of_all_weights:.0f} % of the FLOPs of training all weights"
    if "build-mini" in of_system:
        share += f", of which {100 * of_system['build-mini'] / spent:.0f} % made the mini-model"
    # The mini-model is trained on the source's text.
    names = (language, run.recipe.languages.source)
    losses = [loss for loss in run.losses if loss["system"] == system and loss["language"] in names]
    if not losses:
        return share
    hours = sum(loss["hours"] for loss in losses)
    memory = max(loss["memory_gib"] for loss in losses)
    return f"{duration(hours)} and {memory:.1f} GiB on this machine; {share}"


def _mean(rows: list[curves.Row], column: str) -> float:
    return fmean(row[column] for row in rows)


def findings(run: curves.RunResults, verdicts: Sequence[Verdict]) -> list[str]:
    """Return what the page and the last lines of `run` say first.

    That are the verdicts, or how systems compare with BL_BASE.
    """
    if verdicts:
        return [line for verdict in verdicts for line in verdict.lines]
    if not run.target_scores:
        return [
            f"{curves.name_of(system)}, {_trained(run, system, language)}."
            for system in run.recipe.systems
            for language in run.recipe.languages.targets
        ]
    points = curves.training_curves(run.target_scores)
    comparisons = _comparisons(run, points)
    if comparisons:
        return [f"Compared with BL_BASE at the end of its training, {'; '.join(comparisons)}."]
    scores = [
        f"{curves.name_of(system)} {score:.1f} in {task}"
        for (system, task), score in averages(points).stack().items()
    ]
    return [f"Mean scores over languages at the end of training: {'; '.join(scores)}."]


def _comparisons(run: curves.RunResults, points: pd.DataFrame) -> list[str]:
    """Return a clause for each system that is compared with BL_BASE."""
    speedups = curves.speedups(run.target_scores) if run.recipe.adapt.steps else {}
    costs = adapt_costs(recipe_costs(run.recipe))
    clauses: list[str] = []
    for system, by_group in speedups.items():
        name = curves.name_of(system)
        cost = f"{100 * costs[system] / costs[BASELINE]:.0f} % of its compute"
        score = 100 * retained(points)[system]
        if math.isnan(score):
            clauses.append(f"{name} takes {cost}")
        else:
            speed = _speed(by_group[curves.ALL_TASKS])
            clauses.append(f"{name} keeps {score:.0f} % of its score for {cost}, and {speed}")
    return clauses


def _speed(speedup: curves.Speedup) -> str:
    if not speedup.reaches:
        return "never reaches 95 % of it"
    if not speedup.value:
        return "reaches 95 % of it, which BL_BASE has unadapted"
    if speedup.value >= 1:
        return f"reaches 95 % of it with {speedup.value:.2f} times less compute"
    return f"reaches 95 % of it with {1 / speedup.value:.2f} times more compute"
