"""What a run has come to, in a sentence for each system and language: scores before and after, and
what it cost.

The page, the last lines of `run` and the cards of exports say it.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from ds_minimodel.common.files import Count, Stored
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.systems import BASELINE, SYSTEMS
from ds_minimodel.evaluation.comparison import Measure
from ds_minimodel.report import curves
from ds_minimodel.report.render import duration
from ds_minimodel.report.tables import PERCENT, SCALES, adapt_costs, averages, retained

VERDICTS_FILE = "verdicts.json"
_WORSE = "worse than the untouched model: train longer or on more text, or leave the model as it is"
_KEEPS = {  # what keeps more of the source, by whether the body trains
    False: "raise adapt.new_token_penalty in the recipe, or lower adapt.lr",
    True: "raise adapt.replay in the recipe, or export-hf with a smaller --strength",
}
MAX_SOURCE_LOSS = 1.0  # percent of the source's score, without a warning


class Verdict(Stored):
    """Of a system in a language.

    steps: updates of the pack. clauses: {task: what became of it}. measures: of all tasks, and of a
    Kept, whose sentences are `kept`. worse: in which the untouched model is better, and what to do,
    a line each. cost: of step 2.
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
        """Of these tasks."""
        return (
            "; ".join([*(text for task, text in self.clauses.items() if task in tasks), self.cost])
            + "."
        )

    @property
    def lines(self) -> list[str]:
        """The sentence of all tasks, those of what is kept, and a line for each that is worse."""
        own = [self.sentence(self.clauses), *self.kept, *self.worse]
        return [f"{curves.name_of(self.system)}, {line}" for line in own]


def verdicts_of(run: curves.RunResults) -> list[Verdict]:
    """Those of a recipe with a base; without one nothing was there before."""
    if not run.recipe.base:
        return []
    return [
        _verdict(run, system, language)
        for system in run.recipe.systems
        for language in run.recipe.languages.targets
    ]


def _verdict(run: curves.RunResults, system: str, language: str) -> Verdict:
    steps, clauses, measures, worse = run.recipe.adapt.steps, dict[str, str](), list[Measure](), []
    for task, metric in run.metrics.items():
        of_task = [row for row in run.scores if (row["system"], row["task"]) == (system, task)]
        rows = [row for row in of_task if (row["language"], row["step"]) == (language, steps)]
        if not rows:
            continue
        column, unit = curves.shown_score(rows[0], metric)
        scale, named = SCALES.get(column, PERCENT), f", {task}" if len(run.metrics) > 1 else ""
        is_extends = column in curves.BITS and run.recipe.finetune.tasks[task].kind == task
        what = "held-out text" if is_extends else task
        measure = partial(Measure, unit=unit, decimals=3 if column in curves.BITS else 1)
        scores = _mean(rows, curves.OF_SOURCE + column), _mean(rows, column)
        measures.append(measure(what=f"{language}, {what}", before=scores[0], after=scores[1]))
        before, after = measures[-1].texts
        clauses[task] = f"{language}{named}: {before} {unit} before, {after} after"
        if column in curves.BITS:
            clauses[task] += _compressed(run, task, language, scores[1])
        if curves.ON_SOURCE + column in rows[0]:
            source = run.recipe.languages.source
            own = [row for row in of_task if row["language"] == source]
            of_source = _mean(own, column), _mean(rows, curves.ON_SOURCE + column)
            measures.append(
                measure(what=f"{source}, {what}", before=of_source[0], after=of_source[1])
            )
            before, after = measures[-1].texts
            clauses[task] += f"; {source}{named}: {before} before, {after} after"
            if curves.ON_SOURCE + "cut" in rows[0]:
                clauses[task] += (
                    f", {_mean(rows, curves.ON_SOURCE + 'cut'):.1f} % of it cut otherwise"
                )
            lost = 100 * abs(of_source[1] / of_source[0] - 1) if of_source[0] else 0.0
            if lost > MAX_SOURCE_LOSS and of_source[1] != scale.best(of_source):
                advice = _KEEPS[bool(SYSTEMS[system].trains)]
                worse.append(f"{source}{named}: {lost:.1f} % worse than before: {advice}.")
        if scores[1] != scale.best(scores):
            worse.append(f"{clauses[task]}: {_WORSE}.")
    clauses = clauses or {"held-out text": _trained(run, system, language)}
    facts: dict[str, Any] = {"clauses": clauses, "measures": measures, "kept": [], "worse": worse}
    if kept := run.kept.get((system, language)):
        measures += kept.measures
        worse += kept.worse
        facts["kept"] = kept.sentences
    return Verdict(
        system=system, language=language, steps=steps, cost=_cost(run, system, language), **facts
    )


def _trained(run: curves.RunResults, system: str, language: str) -> str:
    """What step 2 has done, where no task has scored it."""
    for loss in run.losses:
        of_run = loss["system"], loss["stage"], loss["language"]
        if of_run == (system, "adapt", language) and loss["held_out"]:
            (first, before), (last, after) = loss["held_out"][0], loss["held_out"][-1]
            return (
                f"{language}, loss on held-out text: {before:.3f} nats per token after {first:,} "
                f"updates, {after:.3f} after {last:,}"
            )
    return f"{language}: {run.recipe.adapt.steps:,} updates, and nothing was scored"


def _compressed(run: curves.RunResults, task: str, language: str, bits: float) -> str:
    """What xz, which knows no language, takes, in brackets."""
    xz = run.compressed.get((task, language))
    return "" if xz is None else f" (xz {xz:.3f}{', which is better' if xz < bits else ''})"


def _cost(run: curves.RunResults, system: str, language: str) -> str:
    """Time, memory and executed FLOPs of training, that of a mini-model too; FLOPs by those of all
    weights.
    """
    names = language, run.recipe.languages.source
    losses = [loss for loss in run.losses if loss["system"] == system and loss["language"] in names]
    costs = recipe_costs(run.recipe.model_copy(update={"systems": [system, "full"]}))
    own, whole = (
        sum(row["executed_eflops"] for row in costs if row["system"] == name)
        for name in (system, "full")
    )
    hours, memory = (
        sum(loss["hours"] for loss in losses),
        max((loss["memory_gib"] for loss in losses), default=0),
    )
    if not whole:
        return "no training"
    here = f"{duration(hours)} and {memory:.1f} GiB on this machine; " if losses else ""
    return f"{here}{100 * own / whole:.0f} % of the FLOPs of training all weights"


def _mean(rows: list[curves.Row], column: str) -> float:
    return fmean(row[column] for row in rows)


def findings(run: curves.RunResults, verdicts: Sequence[Verdict]) -> list[str]:
    """What the page and the last lines of `run` say first: verdicts, or how systems compare with
    BL_BASE.
    """
    if verdicts:
        return [line for verdict in verdicts for line in verdict.lines]
    if not run.target_scores:
        each = product(run.recipe.systems, run.recipe.languages.targets)
        return [f"{curves.name_of(system)}, {_trained(run, system, own)}." for system, own in each]
    points, costs, said = (
        curves.training_curves(run.target_scores),
        adapt_costs(recipe_costs(run.recipe)),
        [],
    )
    speedups = curves.speedups(run.target_scores) if run.recipe.adapt.steps else {}
    for system, by_group in speedups.items():
        score, cost = (
            100 * retained(points)[system],
            f"{100 * costs[system] / costs[BASELINE]:.0f} % of its compute",
        )
        times, reaches = by_group[curves.ALL_TASKS].value, by_group[curves.ALL_TASKS].reaches
        if not reaches:
            speed = "never reaches 95 % of it"
        elif not times:
            speed = "reaches 95 % of it, as BL_BASE does unadapted"
        else:
            more = f"{times:.2f} times less" if times >= 1 else f"{1 / times:.2f} times more"
            speed = f"reaches 95 % of it with {more} compute"
        kept = (
            f"takes {cost}"
            if math.isnan(score)
            else f"keeps {score:.0f} % of its score for {cost}, and {speed}"
        )
        said.append(f"{curves.name_of(system)} {kept}")
    if said:
        return [f"Against BL_BASE after all of its training, {'; '.join(said)}."]
    ends = averages(points)
    said = [
        f"{curves.name_of(system)} {score:.1f} in {task}"
        for (system, task), score in ends.stack().items()
    ]
    return [f"Mean scores over languages after all of the training: {'; '.join(said)}."]
