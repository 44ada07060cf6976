"""Training curves from score rows, compute to near-maximal performance, and speedups (paper section 4.2).

A score row is {"system", "task", "language", "seed", "step", "eflops", "score"}: the score (0 to 100) of one
finetuning seed with the pack that step 2 had after `step` updates, which had cost `eflops` by then.
"""

import math
import statistics
from collections import defaultdict
from typing import NamedTuple

BASELINE = "bl_base"
NEAR_MAXIMAL = 0.95  # share of the baseline's final score
AVERAGE = "avg"  # stands as the language of an average over languages


class Point(NamedTuple):
    """One checkpoint: score over seeds. `std` is the sample standard deviation, None with one seed."""

    step: int
    eflops: float
    mean: float
    std: float | None
    num_seeds: int


class Estimate(NamedTuple):
    """Compute at which a target is reached, between the checkpoints before (lower) and after (upper)."""

    eflops: float
    lower: float
    upper: float


NEVER = Estimate(math.inf, math.inf, math.inf)


class Speedup(NamedTuple):
    """Mean over languages of baseline compute / system compute.

    `mean` is None where no language has a ratio; `excluded` names the languages that have none: one of the
    two never reaches the target, or the system needs no compute at all.
    """

    mean: float | None
    by_language: dict
    excluded: list


def with_language_average(rows):
    """`rows` plus, for each system, task, seed and step, their mean over languages as language "avg".

    A step has an average only where every language of the task was scored with that seed, so that all points
    of all averaged curves are means over the same languages.
    """
    languages, groups = defaultdict(set), defaultdict(list)
    for row in rows:
        languages[row["task"]].add(row["language"])
        groups[row["system"], row["task"], row["seed"], row["step"]].append(row)
    averages = []
    for (system, task, seed, step), group in groups.items():
        if len(group) == len(languages[task]):
            averages.append({"system": system, "task": task, "language": AVERAGE, "seed": seed, "step": step,
                             "eflops": statistics.fmean(row["eflops"] for row in group),
                             "score": statistics.fmean(row["score"] for row in group)})
    return [*rows, *averages]


def training_curves(rows):
    """{(system, task, language): [Point, ...] by rising step}, mean and standard deviation over seeds."""
    groups = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["system"], row["task"], row["language"]][row["step"]].append(row)
    return {key: [_point(step, by_step[step]) for step in sorted(by_step)] for key, by_step in groups.items()}


def _point(step, rows):
    scores = [row["score"] for row in rows]
    return Point(step, statistics.fmean(row["eflops"] for row in rows), statistics.fmean(scores),
                 statistics.stdev(scores) if len(scores) > 1 else None, len(scores))


def compute_to_reach(curve, target):
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


def near_maximal_targets(curves):
    """{(task, language): 95 % of bl_base's score at training completion}, the target of every system."""
    return {(task, language): NEAR_MAXIMAL * curve[-1].mean
            for (system, task, language), curve in curves.items() if system == BASELINE}


def near_maximal(curves):
    """{(system, task, language): Estimate} for every curve that bl_base sets a target for."""
    targets = near_maximal_targets(curves)
    return {(system, task, language): compute_to_reach(curve, targets[task, language])
            for (system, task, language), curve in curves.items() if (task, language) in targets}


def speedup(estimates, system, task):
    """Speedup of `system` over bl_base on `task`: the mean of the languages' ratios (paper footnote 6)."""
    ratios, excluded = {}, []
    for (name, of_task, language), estimate in estimates.items():
        if (name, of_task) != (system, task) or language == AVERAGE:
            continue
        base = estimates[BASELINE, task, language].eflops
        if 0 < estimate.eflops < math.inf and base < math.inf:
            ratios[language] = base / estimate.eflops
        else:
            excluded.append(language)
    return Speedup(statistics.fmean(ratios.values()) if ratios else None, ratios, excluded)


def mean_compute(estimates, system, task):
    """Table 3's avg: (mean EFLOPs over the languages that reach the target or None, those that never do)."""
    of_languages = {language: estimate.eflops for (name, of_task, language), estimate in estimates.items()
                    if (name, of_task) == (system, task) and language != AVERAGE}
    never = [language for language, eflops in of_languages.items() if eflops == math.inf]
    finite = [eflops for eflops in of_languages.values() if eflops < math.inf]
    return (statistics.fmean(finite) if finite else None), never
