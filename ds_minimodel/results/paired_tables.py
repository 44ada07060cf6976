"""Tables of paired comparisons: differences with intervals, shares of BL_BASE, speedups by cell, measured time."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from ds_minimodel.results.curves import NEAR_MAXIMAL, Row
from ds_minimodel.results.paired import (
    NUM_RESAMPLES,
    Number,
    Place,
    UnitCurves,
    difference,
    pairs_of,
    share,
    share_of_gain,
    speedup,
    speedup_by_run,
)
from ds_minimodel.results.render import EMPTY, Cell, Table
from ds_minimodel.results.units import flops_unit, in_order, name_of

ALL_TASKS = "all tasks"
INTERVALS = (
    "A cell is a task in a language; a unit is a cell with a seed of the run and a finetuning seed. Two systems are "
    "compared in the units that both have. The number is the mean over cells of the mean over units; in brackets its "
    f"95 % interval: percentile bootstrap, {NUM_RESAMPLES:,} resamples of the cells, then of the units in each. "
    "With few cells or units it is too narrow."
)

Differences = Mapping[tuple[str, str], Mapping[str, Number]]
Paces = Mapping[str, Mapping[str, float]]  # {variant: {language: measured seconds an EFLOP of step 2}}


def differences_of(curves: UnitCurves, compared: Iterable[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Number]]:
    """{(one, other): {task, or "all tasks": difference}} of the variants that have units in common."""
    found = {}
    for one, other in compared:
        pairs = pairs_of(curves, one, other)
        tasks = list(dict.fromkeys(pair.task for pair in pairs))
        groups = {ALL_TASKS: pairs} | {task: [pair for pair in pairs if pair.task == task] for task in tasks}
        numbers = {name: difference(group) for name, group in groups.items()}
        if pairs:
            found[one, other] = {name: number for name, number in numbers.items() if number}
    return found


def columns_of(differences: Differences) -> list[str]:
    """All tasks together, and each task where there are several."""
    names = list(dict.fromkeys(name for numbers in differences.values() for name in numbers))
    return names if len(names) > 2 else [ALL_TASKS]


def difference_label(one: str, other: str) -> str:
    """What a difference is called on the page."""
    return f"{name_of(one)} − {name_of(other)}"


def number_cell(number: Number | None, form: str = "{:.2f}") -> Cell:
    """Cell with a number and its interval."""
    if number is None:
        return EMPTY
    interval = f"[{form.format(number.low)}, {form.format(number.high)}]" if number.num_units > 1 else ""
    return Cell(form.format(number.value), interval)


def differences_table(title: str, differences: Differences) -> Table:
    """Differences in final score, in points, of all tasks and of each."""
    columns = columns_of(differences)
    rows = [
        [
            Cell(difference_label(one, other)),
            Cell(f"{numbers[ALL_TASKS].num_cells} / {numbers[ALL_TASKS].num_units}"),
            *(number_cell(numbers.get(name), "{:+.2f}") for name in columns),
        ]
        for (one, other), numbers in differences.items()
    ]
    return Table(title, ["Difference in points", "cells / units", *columns], rows, notes=[INTERVALS])


def majority_scores(baselines: Iterable[Row]) -> dict[Place, float]:
    """The majority class's score in each cell that has one."""
    return {(row["task"], row["language"]): row["score"] for row in baselines if row["baseline"] == "majority"}


def shares_table(
    curves: UnitCurves, baseline_of: Mapping[str, str], majority: Mapping[Place, float], paces: Paces
) -> Table:
    """What each variant keeps of its BL_BASE's score and of its gain over the majority class, and its speedup."""
    rows = []
    for one in in_order(baseline_of):
        other = baseline_of[one]
        pairs = pairs_of(curves, one, other) if one != other else []
        if pairs:
            gain, times, pace = share_of_gain(pairs, majority), speedup(pairs), _pace(paces, one, other)
            rows.append(
                [
                    Cell(name_of(one)),
                    Cell(name_of(other)),
                    Cell(f"{len(pairs)} / {sum(len(pair.units) for pair in pairs)}"),
                    number_cell(share(pairs), "{:.3f}"),
                    number_cell(gain, "{:.3f}"),
                    Cell(str(gain.num_cells if gain else 0)),
                    number_cell(times),
                    Cell(str(times.num_cells if times else 0)),
                    Cell(f"{times.value * pace:.2f}") if times and pace else EMPTY,
                ]
            )
    notes = [
        "Share: mean over cells of the mean final score over BL_BASE's. Share of the gain: the same, counted from the "
        "majority class's score, in the cells that have one and where BL_BASE is above it. Intervals as above.",
        f"Speedup: in each cell, and for each seed of the run, BL_BASE's compute to {NEAR_MAXIMAL:.0%} of its own "
        "final score over the system's to the same, on curves that are means over finetuning seeds; then the mean. A "
        "system that never gets there counts as 0. Left out is where BL_BASE is there unadapted. For a system that is "
        "there unadapted its next checkpoint's compute is taken: its speedup is at least that. In seconds: times "
        "BL_BASE's measured seconds an EFLOP of step 2 over the system's, mean over languages; what else the machine "
        "did changes it.",
    ]
    of_speedup = ["speedup", "in cells", "in seconds"]
    columns = ["System", "against", "cells / units", "share", "share of gain", "in cells", *of_speedup]
    return Table("Share of BL_BASE, and speedup by cell", columns, rows, notes=notes)


def speedups_table(curves: UnitCurves, baseline_of: Mapping[str, str]) -> Table:
    """Speedup over BL_BASE in each cell, for each seed of a run."""
    systems = [one for one in in_order(baseline_of) if one != baseline_of[one]]
    found = {
        system: {
            (pair.task, pair.language, run): times
            for pair in pairs_of(curves, system, baseline_of[system])
            for run, times in speedup_by_run(pair).items()
        }
        for system in systems
    }
    systems = [system for system in systems if found[system]]
    keys = sorted({key for system in systems for key in found[system]})
    rows = [
        [
            Cell(f"{task} {language}, seed {run}"),
            *(
                Cell(f"{found[system][task, language, run]:.2f}×") if (task, language, run) in found[system] else EMPTY
                for system in systems
            ),
        ]
        for task, language, run in keys
    ]
    if keys:
        rows.append(
            [Cell("median"), *(Cell(f"{statistics.median(found[system].values()):.2f}×") for system in systems)]
        )
    notes = ["0: never. –: no such run, or BL_BASE is there unadapted."]
    return Table("Speedup over BL_BASE by cell and seed", ["", *map(name_of, systems)], rows, notes=notes)


def measured_adaptations(losses: Iterable[Row]) -> dict[str, list[Row]]:
    """{variant: loss rows of step 2}."""
    measured: dict[str, list[Row]] = {}
    for row in losses:
        if row["stage"] == "adapt":
            measured.setdefault(row["system"], []).append(row)
    return measured


def paces_of(losses: Iterable[Row], spent: Mapping[str, float]) -> Paces:
    """Seconds an EFLOP by the paper's formula, at the median rate of the steps; spent: {variant: EFLOPs of step 2}."""
    found: dict[str, dict[str, float]] = {}
    for variant, rows in measured_adaptations(losses).items():
        for language in {row["language"] for row in rows}:
            seconds = [row["usual_seconds"] for row in rows if row["language"] == language]
            found.setdefault(variant, {})[language] = statistics.fmean(seconds) / spent[variant]
    return found


def _pace(paces: Paces, one: str, other: str) -> float | None:
    """The other's seconds an EFLOP over one's, mean over the languages that both have; None without any."""
    ones, others = paces.get(one, {}), paces.get(other, {})
    ratios = [others[language] / ones[language] for language in sorted(ones.keys() & others.keys())]
    return statistics.fmean(ratios) if ratios else None


def times_table(losses: Iterable[Row], spent: Mapping[str, float]) -> Table | None:
    """Measured time of step 2 beside its cost by formula; None where no run has logged rates."""
    measured = measured_adaptations(losses)
    if not measured:
        return None
    unit = flops_unit(max(spent.values()))
    rows = [
        [
            Cell(name_of(system)),
            Cell(unit.text(spent[system])),
            _seconds([row["seconds"] for row in measured[system]]),
            _seconds([row["usual_seconds"] for row in measured[system]]),
            Cell(str(len(measured[system]))),
        ]
        for system in in_order(measured)
    ]
    notes = [
        "For one language: mean over languages and seeds, in brackets the smallest and the largest. Seconds of the "
        "training steps by the clock, as logged; steps that a kill lost are not counted. At the median rate: without "
        "the times in which the machine did something else. Seconds of runs on different machines do not compare."
    ]
    columns = ["System", f"formula, {unit.name}", "seconds", "seconds at the median rate", "trainings"]
    return Table("Measured time of step 2", columns, rows, notes=notes)


def _seconds(seconds: Sequence[float]) -> Cell:
    mean, least, most = (
        f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"
        for value in (statistics.fmean(seconds), min(seconds), max(seconds))
    )
    return Cell(mean, f"({least}–{most})")
