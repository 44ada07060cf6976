"""Training curves of a run, compute to near-maximal performance (paper section 4.2), and speedups (Figure 1).

Every system has every task, language, seed and step: score rows are those of one run (run_results.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ds_minimodel.recipe.systems import BASELINE
from ds_minimodel.report.run_results import Row
from ds_minimodel.report.units import in_order

NEAR_MAXIMAL = 0.95  # share of the baseline's final score
AVERAGE = "avg"  # stands as the language of an average over languages
ALL_TASKS = "all tasks"

Key = tuple[str, str, str]
KEY = ["system", "task", "language"]


class Estimate(NamedTuple):
    """Compute at which a target is reached, between the checkpoints before (lower) and after (upper)."""

    eflops: float
    lower: float
    upper: float


NEVER = Estimate(math.inf, math.inf, math.inf)


def training_curves(rows: Iterable[Row], metric: str = "score") -> pd.DataFrame:
    """Checkpoints: columns eflops, mean, std (NaN with one seed) and num_seeds by system, task, language and step.

    Of the rows that have `metric`; tasks and languages in their order. "avg" is the mean over a task's
    languages; its deviation is that of the seeds' means.
    """
    points = ["system", "task", "language", "step"]
    scores = pd.DataFrame([row for row in rows if metric in row], columns=[*points, "seed", "eflops", metric])
    averages = scores.groupby(["system", "task", "step", "seed"], as_index=False)[["eflops", metric]].mean()
    scores = pd.concat([scores, averages.assign(language=AVERAGE)])
    orders = {"system": in_order(scores["system"]), **{name: scores[name].unique() for name in KEY[1:]}}
    for name, order in orders.items():
        scores[name] = pd.Categorical(scores[name], order, ordered=True)
    found = scores.groupby(points, observed=True)
    return found.agg(eflops=("eflops", "mean"), mean=(metric, "mean"), std=(metric, "std"), num_seeds=("seed", "size"))


def last_points(curves: pd.DataFrame) -> pd.DataFrame:
    """The points at training completion, by system, task and language."""
    return curves.groupby(KEY, observed=True).tail(1).reset_index("step")


def first_points(curves: pd.DataFrame) -> pd.DataFrame:
    """The first points, by system, task and language."""
    return curves.groupby(KEY, observed=True).head(1).reset_index("step")


def names_in(curves: pd.DataFrame, level: str) -> list[str]:
    """Systems, tasks or languages that have a curve, in the order of the rows; not the average."""
    return [name for name in curves.index.unique(level) if name != AVERAGE]


def near_maximal(curves: pd.DataFrame) -> dict[Key, Estimate]:
    """Compute to 95 % of BL_BASE's score at training completion, of every curve; nothing without BL_BASE."""
    if BASELINE not in names_in(curves, "system"):
        return {}
    targets = NEAR_MAXIMAL * last_points(curves)["mean"].loc[BASELINE]
    return {
        (system, task, language): compute_to_reach(curve, targets[task, language])
        for (system, task, language), curve in curves.groupby(KEY, observed=True)
    }


def compute_to_reach(curve: pd.DataFrame, target: float) -> Estimate:
    """Compute at which `curve` (eflops, mean) first scores `target`, interpolated linearly between two checkpoints.

    0 where a first checkpoint at 0 EFLOPs is there already. Where the first checkpoint is there but has cost
    something, nothing is known before it: the estimate is its cost, the lower bound 0. NEVER where no
    checkpoint reaches the target.
    """
    eflops, scores = curve["eflops"].to_numpy(), curve["mean"].to_numpy()
    there = scores >= target
    if not there.any():
        return NEVER
    after = int(there.argmax())
    if after == 0:
        return Estimate(float(eflops[0]), 0.0, float(eflops[0]))
    before = after - 1
    found = np.interp(target, scores[[before, after]], eflops[[before, after]])
    return Estimate(float(found), float(eflops[before]), float(eflops[after]))


class Speedup(NamedTuple):
    """How many times less compute than BL_BASE a system takes to near-maximal performance; 0: it never gets there.

    low, high: the smallest and the largest of single seeds' curves. at_equal_compute: its score − BL_BASE's where the
    cheaper of both ends, in points.
    """

    value: float
    low: float
    high: float
    at_equal_compute: float


def speedups(rows: Sequence[Row]) -> dict[str, dict[str, Speedup]]:
    """{system: {task, or "all tasks" of several: Speedup}} of all but BL_BASE; nothing without BL_BASE."""
    scores = pd.DataFrame(rows, columns=["system", "task", "language", "seed", "step", "eflops", "score"])
    systems, tasks = in_order(scores["system"]), list(scores["task"].unique())
    groups = {ALL_TASKS: tasks} | ({task: [task] for task in tasks} if len(tasks) > 1 else {})
    return {
        system: {name: _speedup(scores[scores["task"].isin(members)], system) for name, members in groups.items()}
        for system in systems
        if BASELINE in systems and system != BASELINE
    }


def _speedup(scores: pd.DataFrame, system: str) -> Speedup:
    curve, base = _pooled(scores, system), _pooled(scores, BASELINE)
    cells = scores.groupby("seed")[["task", "language"]].agg(lambda names: len(set(names)))
    complete = cells.index[(cells == cells.max()).all(axis=1)]  # tasks that are not finetuned have one seed
    of_seeds = [
        _ratio(_pooled(of_seed, system), _pooled(of_seed, BASELINE))
        for of_seed in (scores[scores["seed"] == seed] for seed in complete)
    ]
    end = min(curve["eflops"].iloc[-1], base["eflops"].iloc[-1])
    one, other = (float(np.interp(end, points["eflops"], points["mean"])) for points in (curve, base))
    return Speedup(_ratio(curve, base), min(of_seeds), max(of_seeds), one - other)


def _pooled(scores: pd.DataFrame, system: str) -> pd.DataFrame:
    """A system's curve, averaged over seeds, then over tasks and languages."""
    of_system = scores[scores["system"] == system].rename(columns={"score": "mean"})
    cells = of_system.groupby(["task", "language", "step"])[["eflops", "mean"]].mean()
    return cells.groupby("step").mean()


def _ratio(curve: pd.DataFrame, base: pd.DataFrame) -> float:
    """BL_BASE's compute over the system's; of one that is there unadapted, over its next checkpoint's."""
    target = NEAR_MAXIMAL * base["mean"].iloc[-1]
    own = compute_to_reach(curve, target).eflops
    if own == 0 and len(curve) > 1:
        own = curve["eflops"].iloc[1]
    return compute_to_reach(base, target).eflops / own if 0 < own < math.inf else 0.0


def seconds_ratios(losses: Iterable[Row], spent: Mapping[str, float]) -> dict[str, float]:
    """{system: BL_BASE's measured seconds an EFLOP of step 2 over the system's, mean over languages}.

    losses: rows of losses.py. spent: {system: EFLOPs of step 2}.
    """
    columns = ["system", "language", "usual_seconds"]
    adapted = pd.DataFrame([row for row in losses if row["stage"] == "adapt"], columns=columns)
    paces = adapted.set_index(columns[:2])["usual_seconds"].unstack().div(pd.Series(spent), axis=0)
    return (paces.loc[BASELINE] / paces).mean(axis=1).dropna().to_dict() if BASELINE in adapted["system"].array else {}
