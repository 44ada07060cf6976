"""Paired comparison of two systems, unit by unit, with bootstrap intervals.

A *cell* is a task in a language. A *unit* is a cell with the seed of a run and a finetuning seed; two systems are
compared in the units that both have. A number is a mean over cells. Its interval is the percentile bootstrap's: cells
are drawn with replacement, then in each drawn cell its units, and the number is made anew of what was drawn.
"""

import functools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.results.curves import NEAR_MAXIMAL, Point, Row, compute_to_reach

NUM_RESAMPLES = 10_000
PERCENTILES = (2.5, 97.5)

Unit = tuple[int, int]  # seed of the run, finetuning seed
Place = tuple[str, str]  # task, language: a cell
UnitCurves = Mapping[str, Mapping[Place, Mapping[Unit, list[Point]]]]
Floats = NDArray[np.float64]
# Of a cell: row numbers of drawn units, (draws, units) -> the cell's value for each draw, NaN where it has none.
Statistic = Callable[[NDArray[np.intp]], Floats]


class Number(NamedTuple):
    """Mean over cells with its interval. `low` and `high` are the value itself where there is but one unit."""

    value: float
    low: float
    high: float
    num_cells: int
    num_units: int


class Pair(NamedTuple):
    """Curves of two systems in one cell, unit by unit."""

    task: str
    language: str
    units: list[Unit]
    one: list[list[Point]]
    other: list[list[Point]]


def unit_curves(rows: Iterable[Row]) -> UnitCurves:
    """{variant: {cell: {unit: points by rising step}}} of score rows whose seeds are pairs, as of comparison.py."""
    found: dict[str, dict[Place, dict[Unit, list[Point]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in sorted(rows, key=lambda row: row["step"]):
        point = Point(row["step"], row["eflops"], row["score"], None, {row["seed"]: row["score"]})
        found[row["system"]][row["task"], row["language"]][row["seed"]].append(point)
    return found


def pairs_of(curves: UnitCurves, one: str, other: str) -> list[Pair]:
    """The cells that two variants have units in common in, in the order of the alphabet; units by rising seeds."""
    ones, others = curves.get(one, {}), curves.get(other, {})
    pairs = []
    for place in sorted(ones.keys() & others.keys()):
        units = sorted(ones[place].keys() & others[place].keys())
        if units:
            pairs.append(
                Pair(*place, units, [ones[place][unit] for unit in units], [others[place][unit] for unit in units])
            )
    return pairs


def difference(pairs: Sequence[Pair]) -> Number | None:
    """Mean of (one's final score − the other's), in points; None without a cell, here as below."""
    return _number(pairs, lambda one, other, _: one.mean(axis=1) - other.mean(axis=1))


def share(pairs: Sequence[Pair]) -> Number | None:
    """Mean over cells of one's mean final score over the other's."""
    return _number(pairs, lambda one, other, _: _ratio(one.mean(axis=1), other.mean(axis=1)))


def share_of_gain(pairs: Sequence[Pair], floors: Mapping[Place, float]) -> Number | None:
    """Share, counted from a floor such as the majority class's score; over the cells where the other is above one."""

    def value(one: Floats, other: Floats, pair: Pair) -> Floats:
        floor = floors[pair.task, pair.language]
        return _ratio(one.mean(axis=1) - floor, other.mean(axis=1) - floor)

    return _number([pair for pair in pairs if (pair.task, pair.language) in floors], value)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _number(pairs: Sequence[Pair], value: Callable[[Floats, Floats, Pair], Floats]) -> Number | None:
    """`value` of the drawn units' final scores, each (draws, units)."""

    def of_cell(pair: Pair) -> Statistic:
        one, other = (np.array([curve[-1].mean for curve in curves]) for curves in (pair.one, pair.other))
        return lambda drawn: value(one[drawn], other[drawn], pair)

    return bootstrap([(len(pair.units), of_cell(pair)) for pair in pairs])


def speedup_by_run(pair: Pair, drawn: Iterable[int] | None = None) -> dict[int, float]:
    """{seed of a run: the other's compute to 95 % of its own final score ÷ one's to reach the same}.

    The curves are means over the run's units, or over those `drawn`. 0 where one never gets there. A run whose other
    is there unadapted is left out. Where one is there unadapted, its next checkpoint's compute stands for none: the
    speedup is at least that.
    """
    by_run: dict[int, list[int]] = defaultdict(list)
    for number in range(len(pair.units)) if drawn is None else drawn:
        by_run[pair.units[number][0]].append(number)
    found = {}
    for run, numbers in by_run.items():
        one, other = (_mean_curve([curves[number] for number in numbers]) for curves in (pair.one, pair.other))
        target = NEAR_MAXIMAL * other[-1].mean
        base, own = compute_to_reach(other, target).eflops, compute_to_reach(one, target).eflops
        if own == 0 and len(one) > 1:
            own = one[1].eflops
        if base > 0 and own > 0:
            found[run] = 0.0 if own == math.inf else base / own
    return found


def _mean_curve(curves: Sequence[list[Point]]) -> list[Point]:
    """Mean of the units' curves at the steps that all of them have."""
    by_step = [{point.step: point for point in curve} for curve in curves]
    steps = [point.step for point in curves[0] if all(point.step in points for points in by_step)]
    return [
        Point(
            step,
            statistics.fmean(points[step].eflops for points in by_step),
            statistics.fmean(points[step].mean for points in by_step),
            None,
            {},
        )
        for step in steps
    ]


def speedup(pairs: Sequence[Pair]) -> Number | None:
    """Mean over cells of the mean over runs of `speedup_by_run`."""

    def of_cell(pair: Pair) -> Statistic:
        def value(drawn: NDArray[np.intp]) -> Floats:
            sets, places = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
            ratios = [list(speedup_by_run(pair, numbers).values()) for numbers in sets.tolist()]
            means = [statistics.fmean(of_runs) if of_runs else math.nan for of_runs in ratios]
            return np.array(means)[places.reshape(-1)]

        return value

    return bootstrap([(len(pair.units), of_cell(pair)) for pair in pairs])


def bootstrap(cells: Sequence[tuple[int, Statistic]]) -> Number | None:
    """Mean over `cells` with its interval; a cell is (number of its units, its statistic).

    A cell without a value for all of its units is left out; of a resample, one without a value for the drawn units.
    """
    whole = [(size, statistic, float(statistic(np.arange(size)[None])[0])) for size, statistic in cells]
    whole = [(size, statistic, value) for size, statistic, value in whole if not math.isnan(value)]
    if not whole:
        return None
    draws = _draws(len(whole), max(size for size, _, _ in whole))
    drawn_cells = (draws[:, : len(whole)] * len(whole)).astype(np.intp)
    of_units = draws[:, len(whole) :].reshape(NUM_RESAMPLES, len(whole), -1)
    values = np.empty(drawn_cells.shape)
    for number, (size, statistic, _) in enumerate(whole):
        of_cell = drawn_cells == number
        values[of_cell] = statistic((of_units[of_cell][:, :size] * size).astype(np.intp))
    is_there = ~np.isnan(values)
    means = _ratio(np.where(is_there, values, 0.0).sum(axis=1), is_there.sum(axis=1).astype(float))
    low, high = np.percentile(means[~np.isnan(means)], PERCENTILES)
    mean = statistics.fmean(value for _, _, value in whole)
    return Number(mean, float(low), float(high), len(whole), sum(size for size, _, _ in whole))


@functools.lru_cache(maxsize=8)
def _draws(num_cells: int, num_units: int) -> Floats:
    """Random numbers below 1, a row for each resample: one for each drawn cell, then each drawn cell's units.

    Where all cells have as many units it draws what `random.Random(1).choices` does.
    """
    draw = random.Random(1).random
    width = num_cells * (1 + num_units)
    return np.array([draw() for _ in range(NUM_RESAMPLES * width)]).reshape(NUM_RESAMPLES, width)
