"""Paired comparison of two systems, with bootstrap intervals, and the tables that both studies make of it.

A *cell* is a task in a language. A *unit* is a cell with the seed of a run and a finetuning seed; two systems are
compared in the units that both have. An interval is the percentile bootstrap's: seeds of runs are drawn with
replacement, then cells, then in each drawn cell the units of each drawn seed, and the number is made anew of what was
drawn.

A *variant* is what the tables tell apart: a system, or "SYSTEM N=2", "SYSTEM (label)" of a run that differs.
"""

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.curves import NEAR_MAXIMAL, SCORES_FILE, Row
from ds_minimodel.report.render import EMPTY, Cell, CellRow, Table

NUM_RESAMPLES = 10_000
PERCENTILES = (2.5, 97.5)
ALL_TASKS = "all tasks"

Seeds = tuple[int, int]  # of the run, of finetuning: a unit of a cell
TaskLanguage = tuple[str, str]  # a cell
Floats = NDArray[np.float64]


class Point(NamedTuple):
    """A checkpoint of one unit."""

    step: int
    eflops: float
    score: float


UnitCurves = Mapping[str, Mapping[TaskLanguage, Mapping[Seeds, list[Point]]]]


class BootstrapEstimate(NamedTuple):
    """A number with its interval. `low` and `high` are the value itself where there is but one unit."""

    value: float
    low: float
    high: float
    num_cells: int
    num_units: int


class Pair(NamedTuple):
    """Curves of two systems in one cell, unit by unit."""

    task: str
    language: str
    units: list[Seeds]
    one: list[list[Point]]
    other: list[list[Point]]


EstimatesByTask = Mapping[tuple[str, str], Mapping[str, BootstrapEstimate]]  # of pairs of variants, by task


def scores_of(work: Path) -> list[dict[str, Any]]:
    """Score rows of all finished runs in a folder, each with its run and its seed as (pretraining, finetuning)."""
    rows = []
    for report in sorted(work.glob(f"*/report/{SCORES_FILE}")):
        run = report.parents[1]
        of_run: list[dict[str, Any]] = []
        for name, system in SYSTEMS.items():
            of_body = run.glob(f"evaluate/{system.body_name}/en/*/*/{SCORES_FILE}")  # English is scored once a body
            paths = {*run.glob(f"evaluate/{name}/*/*/*/{SCORES_FILE}")}
            for path in sorted(paths | {*of_body} if paths else ()):
                of_run += [row | {"system": name} for row in json.loads(path.read_text(encoding="utf-8"))]
        seed = min(row["seed"] for row in of_run)  # finetuning counts on from the seed of the run
        rows += [{"run": run.name, **row, "seed": [seed, row["seed"]]} for row in of_run]
    return rows


def unit_curves(rows: Iterable[Row]) -> UnitCurves:
    """{variant: {cell: {unit: points by rising step}}} of score rows whose seeds are pairs."""
    found: dict[str, dict[TaskLanguage, dict[Seeds, list[Point]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in sorted(rows, key=lambda row: row["step"]):
        point = Point(row["step"], row["eflops"], row["score"])
        found[row["system"]][row["task"], row["language"]][row["seed"]].append(point)
    return found


def pairs_of(curves: UnitCurves, one: str, other: str) -> list[Pair]:
    """The cells that two variants have units in common in, in the order of the alphabet; units by rising seeds."""
    ones, others = curves.get(one, {}), curves.get(other, {})
    pairs = []
    for cell in sorted(ones.keys() & others.keys()):
        units = sorted(ones[cell].keys() & others[cell].keys())
        if units:
            pairs.append(
                Pair(*cell, units, [ones[cell][unit] for unit in units], [others[cell][unit] for unit in units])
            )
    return pairs


# --- final scores: a value for each cell, then their mean. None where no cell has one


def difference(pairs: Sequence[Pair]) -> BootstrapEstimate | None:
    """Mean over cells of (one's mean final score − the other's), in points."""
    return _mean_over_cells(pairs, lambda one, other: one - other)


def share(pairs: Sequence[Pair]) -> BootstrapEstimate | None:
    """Mean over cells of one's mean final score over the other's."""
    return _mean_over_cells(pairs, _ratio)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)


def _mean_over_cells(pairs: Sequence[Pair], value: Callable[[Floats, Floats], Floats]) -> BootstrapEstimate | None:
    """`value` of both systems' mean final scores, each (draws, cells); a cell without one in the data has no part."""
    if not pairs:
        return None
    draws = _draws_of(pairs)
    one, other = (
        draws.means_of_cells([[curve[-1].score for curve in curves] for curves in of_system])
        for of_system in ([pair.one for pair in pairs], [pair.other for pair in pairs])
    )
    of_cells = value(one, other)
    without = np.isnan(of_cells[0])
    values = draws.mean(np.where(without, np.nan, of_cells))
    used = [pair for pair, is_without in zip(pairs, without, strict=True) if not is_without]
    return _estimate(used, values) if used else None


# --- whole curves, averaged over cells first: a number is one of two curves. None without a cell


def speedup(pairs: Sequence[Pair], part: float = NEAR_MAXIMAL) -> BootstrapEstimate | None:
    """The other's compute to a part (95 %) of its own final score over one's to reach the same.

    0 where one never does, or where the other is there unadapted. Where one is, its next checkpoint's compute stands
    for none: the speedup is at least that.
    """
    if not pairs:
        return None
    one, other = _pooled_curves(pairs)
    targets = part * other.scores[:, -1]
    base, own = _compute_to_reach(other, targets), _compute_to_reach(one, targets)
    if len(one.eflops) > 1:
        own[own == 0] = one.eflops[1]
    ratios = np.divide(base, own, out=np.zeros_like(base), where=(own > 0) & (own < np.inf))
    return _estimate(pairs, np.where(np.isnan(targets), np.nan, ratios))


def difference_at_equal_compute(pairs: Sequence[Pair]) -> BootstrapEstimate | None:
    """One's score − the other's where the cheaper of both ends, in points.

    The other's is read off the curve of its whole training, whose learning rate has not decayed there.
    """
    if not pairs:
        return None
    one, other = _pooled_curves(pairs)
    compute = min(one.eflops[-1], other.eflops[-1])
    return _estimate(pairs, _score_at(one, compute) - _score_at(other, compute))


class _PooledCurve(NamedTuple):
    """Mean over cells of a system's curves, for each draw: eflops (steps), scores (draws, steps)."""

    eflops: Floats
    scores: Floats


def _pooled_curves(pairs: Sequence[Pair]) -> tuple[_PooledCurve, _PooledCurve]:
    draws = _draws_of(pairs)
    return _pooled(draws, [pair.one for pair in pairs]), _pooled(draws, [pair.other for pair in pairs])


def _pooled(draws: "_Draws", cells: Sequence[Sequence[list[Point]]]) -> _PooledCurve:
    """The curve at the steps that all units have; cells: for each cell the curves of its units."""
    by_step = [[{point.step: point for point in curve} for curve in units] for units in cells]
    shared = set.intersection(*(set(points) for units in by_step for points in units))
    columns = []
    for step in sorted(shared):
        eflops = np.mean([points[step].eflops for units in by_step for points in units])
        scores = [[points[step].score for points in units] for units in by_step]
        columns.append((eflops, draws.mean(draws.means_of_cells(scores))))
    return _PooledCurve(np.array([eflops for eflops, _ in columns]), np.stack([scores for _, scores in columns], 1))


def _compute_to_reach(curve: _PooledCurve, targets: Floats) -> Floats:
    """EFLOPs at which each draw's curve first has its target, between checkpoints interpolated; infinite for never."""
    there = curve.scores >= targets[:, None]
    first, draws = there.argmax(axis=1), np.arange(len(targets))
    before = np.maximum(first - 1, 0)
    low, high = curve.scores[draws, before], curve.scores[draws, first]
    part = np.divide(targets - low, high - low, out=np.ones_like(targets), where=first > 0)
    found = curve.eflops[before] + part * (curve.eflops[first] - curve.eflops[before])
    return np.where(there.any(axis=1), found, np.inf)


def _score_at(curve: _PooledCurve, compute: float) -> Floats:
    after = min(int(np.searchsorted(curve.eflops, compute)), len(curve.eflops) - 1)
    before = max(after - 1, 0)
    gap = curve.eflops[after] - curve.eflops[before]
    part = (compute - curve.eflops[before]) / gap if gap else 1.0
    return (1 - part) * curve.scores[:, before] + part * curve.scores[:, after]


# --- the bootstrap


class _Draws(NamedTuple):
    """How often each draw has each cell, (draws, cells), and each unit of a cell, (draws, cells, units).

    The first draw is the data itself. A cell has 0 for the units that others have beyond its own.
    """

    cells: Floats
    units: Floats

    def means_of_cells(self, scores: Sequence[Sequence[float]]) -> Floats:
        """Mean of each cell's drawn units, (draws, cells), NaN without any; scores: for each cell its units'."""
        padded = np.zeros(self.units.shape[1:])
        for number, of_cell in enumerate(scores):
            padded[number, : len(of_cell)] = of_cell
        return _ratio(np.einsum("dcu,cu->dc", self.units, padded), self.units.sum(axis=2))

    def mean(self, of_cells: Floats) -> Floats:
        """Mean over the drawn cells that have a value, (draws)."""
        weights = np.where(np.isnan(of_cells), 0.0, self.cells)
        return _ratio((weights * np.nan_to_num(of_cells)).sum(axis=1), weights.sum(axis=1))


@functools.lru_cache(maxsize=8)
def _draws(units: tuple[tuple[Seeds, ...], ...]) -> _Draws:
    """units: those of each cell."""
    runs = sorted({run for of_cell in units for run, _ in of_cell})
    members = [[[n for n, (run, _) in enumerate(of_cell) if run == one] for one in runs] for of_cell in units]
    most = max(len(of_seed) for of_cell in members for of_seed in of_cell)
    sizes = np.array([[len(of_seed) for of_seed in of_cell] for of_cell in members])
    places = np.array([[of_seed + [0] * (most - len(of_seed)) for of_seed in of_cell] for of_cell in members])
    numbers = np.random.RandomState(1)  # draws the same in every release of numpy
    seeds = numbers.randint(len(runs), size=(NUM_RESAMPLES, len(runs)))
    cells = numbers.randint(len(units), size=(NUM_RESAMPLES, len(units)))
    times = np.zeros((NUM_RESAMPLES, len(units), max(map(len, units))))
    rows = np.arange(NUM_RESAMPLES)[:, None]
    for seed in seeds.T:
        for cell in cells.T:
            size = sizes[cell, seed][:, None]
            drawn = (numbers.random_sample((NUM_RESAMPLES, most)) * size).astype(np.intp)
            there = np.arange(most) < size
            np.add.at(times, (rows, cell[:, None], places[cell[:, None], seed[:, None], drawn]), there)
    of_cells = np.stack([np.bincount(drawn, minlength=len(units)) for drawn in cells]).astype(float)
    data = np.array([[float(n < len(of_cell)) for n in range(times.shape[2])] for of_cell in units])
    return _Draws(np.concatenate([np.ones((1, len(units))), of_cells]), np.concatenate([data[None], times]))


def _draws_of(pairs: Sequence[Pair]) -> _Draws:
    return _draws(tuple(tuple(pair.units) for pair in pairs))


def _estimate(pairs: Sequence[Pair], values: Floats) -> BootstrapEstimate:
    """values: (draws), the first of which is the data's; a draw without a value is passed over."""
    low, high = np.percentile(values[1:][~np.isnan(values[1:])], PERCENTILES)
    num_units = sum(len(pair.units) for pair in pairs)
    return BootstrapEstimate(float(values[0]), float(low), float(high), len(pairs), num_units)


# --- tables

INTERVALS = (
    "A cell is a task in a language; a unit is a cell with a seed of the run and a finetuning seed. Two systems are "
    f"compared in the units that both have. In brackets the 95 % interval: percentile bootstrap, {NUM_RESAMPLES:,} "
    "resamples of the runs' seeds, then of the cells, then of the units. With few of them it is too narrow, and with "
    "one run's seed it says nothing of another pretraining."
)


def name_of(variant: str) -> str:
    """Printed name of a variant: its system's title, and what follows it, or itself where it is no system's."""
    system, space, rest = variant.partition(" ")
    return SYSTEMS[system].title + space + rest if system in SYSTEMS else variant


def by_task(
    curves: UnitCurves,
    compared: Iterable[tuple[str, str]],
    number: Callable[[Sequence[Pair]], BootstrapEstimate | None] = difference,
) -> dict[tuple[str, str], dict[str, BootstrapEstimate]]:
    """{(one, other): {task, or "all tasks": number}} of the variants that have units in common."""
    found = {}
    for one, other in compared:
        pairs = pairs_of(curves, one, other)
        tasks = list(dict.fromkeys(pair.task for pair in pairs))
        groups = {ALL_TASKS: pairs} | {task: [pair for pair in pairs if pair.task == task] for task in tasks}
        numbers = {name: number(group) for name, group in groups.items()}
        if pairs:
            found[one, other] = {name: estimate for name, estimate in numbers.items() if estimate}
    return found


def columns_of(estimates: EstimatesByTask) -> list[str]:
    """All tasks together, and each task where there are several."""
    names = list(dict.fromkeys(name for numbers in estimates.values() for name in numbers))
    return names if len(names) > 2 else [ALL_TASKS]


def difference_label(one: str, other: str) -> str:
    """What a difference is called on the page."""
    return f"{name_of(one)} − {name_of(other)}"


def interval_cell(number: BootstrapEstimate | None, form: str = "{:.2f}") -> Cell:
    """Cell with a number and its interval."""
    if number is None:
        return EMPTY
    interval = f"[{form.format(number.low)}, {form.format(number.high)}]" if number.num_units > 1 else ""
    return Cell(form.format(number.value), interval)


def differences_table(title: str, differences: EstimatesByTask) -> Table:
    """Differences in final score, in points, of all tasks and of each."""
    columns = columns_of(differences)
    rows: list[CellRow] = [
        [
            difference_label(one, other),
            f"{numbers[ALL_TASKS].num_cells} / {numbers[ALL_TASKS].num_units}",
            *(interval_cell(numbers.get(name), "{:+.2f}") for name in columns),
        ]
        for (one, other), numbers in differences.items()
    ]
    return Table(title, ["Difference in points", "cells / units", *columns], rows, notes=[INTERVALS])


def speedups_table(speedups: EstimatesByTask, curves: UnitCurves) -> Table:
    """How much sooner than its BL_BASE each variant is, of all tasks and of each; the difference at equal compute."""
    columns = columns_of(speedups)
    rows: list[CellRow] = []
    for (one, other), times in speedups.items():
        pairs = pairs_of(curves, one, other)
        rows.append(
            [
                name_of(one),
                name_of(other),
                f"{len(pairs)} / {sum(len(pair.units) for pair in pairs)}",
                *(interval_cell(times.get(name)) for name in columns),
                interval_cell(difference_at_equal_compute(pairs), "{:+.2f}"),
            ]
        )
    notes = [
        f"Speedup: BL_BASE's compute to {NEAR_MAXIMAL:.0%} of its final score over the system's to the same, on curves "
        "that are averaged over cells and seeds first. 0: never, or BL_BASE is there unadapted. For a system that is "
        "there unadapted its next checkpoint's compute is taken: its speedup is at least that. At equal compute: "
        "difference in points where the cheaper of both ends.",
        INTERVALS,
    ]
    names = [f"speedup, {name}" if len(columns) > 1 else "speedup" for name in columns]
    columns = ["System", "against", "cells / units", *names, "at equal compute"]
    return Table("Speedup over BL_BASE", columns, rows, notes=notes)
