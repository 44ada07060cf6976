"""Training curves from score rows, and compute to near-maximal performance (paper section 4.2).

A score row is {"system", "task", "language", "seed", "step", "eflops", "score"}: the score of one finetuning seed with
the pack that step 2 had after `step` updates, which had cost `eflops` by then; percent, but of the kind `text`, whose
bytes in 100 bits have no end. Further columns are further scores of its kind of task, such as "exact_match".
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ds_minimodel.common.files import Amount, Count, Stored
from ds_minimodel.systems import BASELINE

NEAR_MAXIMAL = 0.95  # share of the baseline's final score
AVERAGE = "avg"  # stands as the language of an average over languages

Row = Mapping[str, Any]  # of scores, costs or baselines, as JSON holds it


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


def further_columns(rows: Iterable[Row]) -> list[str]:
    """Names of the further scores in score rows, in the order of the alphabet."""
    return sorted({name for row in rows for name in row} - ScoreRow.model_fields.keys())


Key = tuple[str, str, str]  # (system, task, language)


class Point(NamedTuple):
    """Checkpoint of a curve: score over seeds. `std` is the sample standard deviation, None with one seed."""

    step: int
    eflops: float
    mean: float
    std: float | None
    by_seed: dict[Hashable, float]


class Estimate(NamedTuple):
    """Compute at which a target is reached, between the checkpoints before (lower) and after (upper)."""

    eflops: float
    lower: float
    upper: float


NEVER = Estimate(math.inf, math.inf, math.inf)


Curves = Mapping[Key, list[Point]]
Estimates = Mapping[Key, Estimate]


def training_curves(rows: Iterable[Row], metric: str = "score") -> dict[Key, list[Point]]:
    """Return {(system, task, language): [Point, ...] by rising step}, mean and standard deviation over seeds.

    A curve has the steps that all of its seeds were scored at: runs may have taken packs at different steps.
    metric: the key of `rows` that is drawn; rows without it are passed over.
    """
    groups: dict[Key, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if metric in row:
            groups[row["system"], row["task"], row["language"]][row["step"]].append(row)
    return {
        key: _of_all_seeds([_point(step, by_step[step], metric) for step in sorted(by_step)])
        for key, by_step in groups.items()
    }


def _of_all_seeds(points: list[Point]) -> list[Point]:
    seeds = {seed for point in points for seed in point.by_seed}
    return [point for point in points if point.by_seed.keys() == seeds]


def _point(step: int, rows: list[Row], metric: str) -> Point:
    by_seed = {row["seed"]: row[metric] for row in rows}
    return Point(
        step,
        statistics.fmean(row["eflops"] for row in rows),
        statistics.fmean(by_seed.values()),
        _deviation(by_seed),
        by_seed,
    )


def _deviation(by_seed: Mapping[Hashable, float]) -> float | None:
    return statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None


def with_language_average(curves: Curves) -> dict[Key, list[Point]]:
    """Return `curves` plus, for each system that has all languages of a task, their mean as language "avg".

    It has the steps that all of the languages have. Its seeds are those with a score in every language, so
    that its deviation is that of the mean; without two such seeds it has none.
    """
    languages: dict[str, dict[str, None]] = defaultdict(dict)
    for _, task, language in curves:
        languages[task][language] = None
    averages: dict[Key, list[Point]] = {}
    for system, task in dict.fromkeys((system, task) for system, task, _ in curves):
        if all((system, task, language) in curves for language in languages[task]):
            of_task = [{point.step: point for point in curves[system, task, language]} for language in languages[task]]
            steps = [step for step in of_task[0] if all(step in by_step for by_step in of_task)]
            averages[system, task, AVERAGE] = [_mean_point([by_step[step] for by_step in of_task]) for step in steps]
    return dict(curves) | {key: curve for key, curve in averages.items() if curve}


def _mean_point(points: list[Point]) -> Point:
    """Mean over languages of one step's points."""
    by_seed = {
        seed: statistics.fmean(point.by_seed[seed] for point in points)
        for seed in points[0].by_seed
        if all(seed in point.by_seed for point in points)
    }
    return Point(
        points[0].step,
        statistics.fmean(point.eflops for point in points),
        statistics.fmean(point.mean for point in points),
        _deviation(by_seed),
        by_seed,
    )


def compute_to_reach(curve: list[Point], target: float) -> Estimate:
    """Compute at which `curve` first scores `target`, interpolated linearly between two checkpoints.

    0 where a first checkpoint at 0 EFLOPs is there already. Where the first checkpoint is there but has cost
    something, nothing is known before it: the estimate is its cost, the lower bound 0. NEVER where no
    checkpoint reaches the target.
    """
    before = None
    for point in curve:
        if point.mean >= target:
            if before is None:
                return Estimate(point.eflops, 0.0, point.eflops)
            share = (target - before.mean) / (point.mean - before.mean)
            eflops = before.eflops + share * (point.eflops - before.eflops)
            return Estimate(eflops, before.eflops, point.eflops)
        before = point
    return NEVER


def near_maximal_targets(curves: Curves) -> dict[tuple[str, str], float]:
    """Return {(task, language): 95 % of BL_BASE's score at training completion}, the target of every system."""
    return {
        (task, language): NEAR_MAXIMAL * curve[-1].mean
        for (system, task, language), curve in curves.items()
        if system == BASELINE
    }


def near_maximal(curves: Curves) -> dict[Key, Estimate]:
    """Return {(system, task, language): Estimate} for every curve that BL_BASE sets a target for."""
    targets = near_maximal_targets(curves)
    return {
        (system, task, language): compute_to_reach(curve, targets[task, language])
        for (system, task, language), curve in curves.items()
        if (task, language) in targets
    }


def mean_compute(estimates: Estimates, system: str, task: str) -> tuple[float | None, list[str]]:
    """Table 3's avg: (mean EFLOPs over the languages that reach the target or None, those that never do)."""
    of_languages = {
        language: estimate.eflops
        for (name, of_task, language), estimate in estimates.items()
        if (name, of_task) == (system, task) and language != AVERAGE
    }
    never = [language for language, eflops in of_languages.items() if eflops == math.inf]
    finite = [eflops for eflops in of_languages.values() if eflops < math.inf]
    return (statistics.fmean(finite) if finite else None), never
