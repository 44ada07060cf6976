"""Tables of paired comparisons: differences with intervals, shares of BL_BASE, speedups, measured time."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from ds_minimodel.results.curves import NEAR_MAXIMAL, Row
from ds_minimodel.results.paired import (
    NUM_RESAMPLES,
    BootstrapEstimate,
    Pair,
    TaskLanguage,
    UnitCurves,
    difference,
    difference_at_equal_compute,
    pairs_of,
    share,
    share_of_gain,
)
from ds_minimodel.results.render import EMPTY, Cell, Table
from ds_minimodel.results.units import flops_unit, in_order, name_of

ALL_TASKS = "all tasks"
INTERVALS = (
    "A cell is a task in a language; a unit is a cell with a seed of the run and a finetuning seed. Two systems are "
    f"compared in the units that both have. In brackets the 95 % interval: percentile bootstrap, {NUM_RESAMPLES:,} "
    "resamples of the runs' seeds, then of the cells, then of the units. With few of them it is too narrow, and with "
    "one run's seed it says nothing of another pretraining."
)

EstimatesByTask = Mapping[tuple[str, str], Mapping[str, BootstrapEstimate]]  # of pairs of variants, by task
Paces = Mapping[str, Mapping[str, float]]  # {variant: {language: measured seconds an EFLOP of step 2}}


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
    rows = [
        [
            Cell(difference_label(one, other)),
            Cell(f"{numbers[ALL_TASKS].num_cells} / {numbers[ALL_TASKS].num_units}"),
            *(interval_cell(numbers.get(name), "{:+.2f}") for name in columns),
        ]
        for (one, other), numbers in differences.items()
    ]
    return Table(title, ["Difference in points", "cells / units", *columns], rows, notes=[INTERVALS])


def majority_scores(baselines: Iterable[Row]) -> dict[TaskLanguage, float]:
    """The majority class's score in each cell that has one."""
    return {(row["task"], row["language"]): row["score"] for row in baselines if row["baseline"] == "majority"}


def shares_table(
    curves: UnitCurves, compared: Iterable[tuple[str, str]], majority: Mapping[TaskLanguage, float]
) -> Table:
    """What each variant keeps of its BL_BASE's score, and of its gain over the majority class; compared: both."""
    rows = []
    for one, other in compared:
        pairs = pairs_of(curves, one, other)
        if not pairs:
            continue
        gain = share_of_gain(pairs, majority)
        rows.append(
            [
                *_compared(one, other, pairs),
                interval_cell(share(pairs), "{:.3f}"),
                interval_cell(gain, "{:.3f}"),
                Cell(str(gain.num_cells if gain else 0)),
            ]
        )
    notes = [
        "Share: mean over cells of the mean final score over BL_BASE's. Share of the gain: the same, counted from the "
        "majority class's score, in the cells that have one and where BL_BASE is above it. Intervals as above."
    ]
    columns = ["System", "against", "cells / units", "share", "share of gain", "in cells"]
    return Table("Share of BL_BASE", columns, rows, notes=notes)


def speedups_table(speedups: EstimatesByTask, curves: UnitCurves, paces: Paces) -> Table:
    """How much sooner than its BL_BASE each variant is, of all tasks and of each; the difference at equal compute."""
    columns, rows = columns_of(speedups), []
    for (one, other), times in speedups.items():
        pairs, pace = pairs_of(curves, one, other), _pace(paces, one, other)
        rows.append(
            [
                *_compared(one, other, pairs),
                *(interval_cell(times.get(name)) for name in columns),
                interval_cell(difference_at_equal_compute(pairs), "{:+.2f}"),
                *([Cell(f"{times[ALL_TASKS].value * pace:.2f}") if pace else EMPTY] if paces else []),
            ]
        )
    notes = [
        f"Speedup: BL_BASE's compute to {NEAR_MAXIMAL:.0%} of its final score over the system's to the same, on curves "
        "that are averaged over cells and seeds first. 0: never, or BL_BASE is there unadapted. For a system that is "
        "there unadapted its next checkpoint's compute is taken: its speedup is at least that. At equal compute: "
        "difference in points where the cheaper of both ends.",
        INTERVALS,
    ]
    if paces:
        notes.append(
            "In seconds: the speedup times BL_BASE's measured seconds an EFLOP of step 2 over the system's, mean over "
            "languages; what else the machine did changes it."
        )
    names = [f"speedup, {name}" if len(columns) > 1 else "speedup" for name in columns]
    columns = ["System", "against", "cells / units", *names, "at equal compute"]
    columns += ["speedup in seconds"] if paces else []
    return Table("Speedup over BL_BASE", columns, rows, notes=notes)


def _compared(one: str, other: str, pairs: Sequence[Pair]) -> list[Cell]:
    num_units = sum(len(pair.units) for pair in pairs)
    return [Cell(name_of(one)), Cell(name_of(other)), Cell(f"{len(pairs)} / {num_units}")]


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
