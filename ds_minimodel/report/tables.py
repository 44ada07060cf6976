"""Tables of the paper for a run, as data; render.py prints them.

Arguments `curves` are those of curves.py.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ds_minimodel.common.vocabulary import MAX_UNKNOWN, MIN_OCCURRENCES
from ds_minimodel.config.systems import BASELINE
from ds_minimodel.evaluation.comparison import Measure, Sample
from ds_minimodel.evaluation.questions import loops
from ds_minimodel.models.flops import EFLOPS_PER_V100_DAY
from ds_minimodel.report.curves import (
    ALL_TASKS,
    AVERAGE,
    BITS,
    ComputeUnit,
    Estimate,
    Key,
    Row,
    Speedup,
    first_points,
    flops_unit,
    in_order,
    last_points,
    name_of,
    names_in,
)
from ds_minimodel.report.render import EMPTY, Cell, CellRow, Table


class Scale(NamedTuple):
    """Format of scores, and the function that gives the best of them."""

    form: str = "{:.1f}"
    best: Callable[[Iterable[float]], float] = max

    def cell(self, mean: float, std: float, best: float | None) -> Cell:
        """Return a cell with a mean and its deviation, bold where it is the best."""
        deviation = "" if math.isnan(std) else f"±{self.form.format(std)}"
        return Cell(self.form.format(mean), deviation, best=mean == best)


PERCENT = Scale()
# Of further scores.
SCALES = dict.fromkeys(BITS, Scale("{:.3f}", min))


def adapt_costs(costs: Iterable[Row]) -> dict[str, float]:
    """Return {system: EFLOPs of step 2 for one language, by the paper's formula}.

    `costs` are the rows of `recipe_costs`.
    """
    return {row["system"]: row["formula_eflops"] for row in costs if row["step"] == "adapt"}


# --- scores


def averages(curves: pd.DataFrame) -> pd.DataFrame:
    """Return mean final scores over languages, a row for each system, a column for each task."""
    return last_points(curves)["mean"].xs(AVERAGE, level="language").unstack()


def retained(curves: pd.DataFrame) -> pd.Series:
    """Return the share of BL_BASE's average final score that each system has, mean over tasks."""
    ends = averages(curves)
    # A share of a score of 0 is not defined.
    known = ends.loc[:, ends.loc[BASELINE] > 0]
    return (known / known.loc[BASELINE]).mean(axis=1)


def speedups_table(by_system: Mapping[str, Mapping[str, Speedup]]) -> Table:
    """Show how much sooner than BL_BASE each system is, over all tasks and in each."""
    groups = list(next(iter(by_system.values())))
    rows: list[CellRow] = []
    for system, by_group in by_system.items():
        cells: list[Cell] = []
        for speedup in by_group.values():
            low = speedup.low
            high = speedup.high
            seeds = f"(single seeds {low:.2f}–{high:.2f})" if low < high else ""
            cells.append(Cell(f"{speedup.value:.2f}", seeds))
        rows.append([name_of(system), *cells, f"{by_group[ALL_TASKS].at_equal_compute:+.2f}"])
    notes = [
        "BL_BASE's compute to 95 % of its final score, divided by the system's compute to the same "
        "score, on curves averaged over seeds, languages and tasks. In brackets the lowest and the "
        "highest value on curves of single finetuning seeds; the value of the averaged curve may "
        "lie outside. Another pretraining may differ by more. 0: the system never gets there, or "
        "BL_BASE is there unadapted. A system that is there unadapted counts with its next "
        "checkpoint, so it is at least as fast. At equal compute: difference in points where the "
        "cheaper of the two ends."
    ]
    return Table("Speedup over BL_BASE", ["System", *groups, "at equal compute"], rows, notes=notes)


def final_scores_table(
    task: str, metric: str, curves: pd.DataFrame, costs: Iterable[Row], scale: Scale = PERCENT
) -> Table:
    """Return Table 2 for one task: training cost and final score in each language.

    Below are the scores before any training (step 0: unadapted embeddings).

    Args:
        task: Of the recipe.
        metric: Name of the scores, such as "accuracy".
        curves: As of `training_curves`.
        costs: As of `recipe_costs`.
        scale: Of the scores.
    """
    ends = last_points(curves).xs(task, level="task")
    starts = first_points(curves).xs(task, level="task")
    spent = adapt_costs(costs)
    unit = flops_unit(max(spent.values(), default=0))
    means = ends["mean"].groupby(level="language", observed=True)
    best = {language: scale.best(of_language) for language, of_language in means}
    rows: list[CellRow] = []
    unadapted: list[CellRow] = []
    for system in names_in(ends, "system"):
        name = name_of(system)
        cost = unit.text(spent[system]) if system in spent else EMPTY
        rows.append([name, cost, *_score_cells(ends.loc[system], scale, best)])
        if (starts.loc[system]["step"] == 0).all():
            cells = _score_cells(starts.loc[system], scale)
            unadapted.append([f"{name}, unadapted", EMPTY, *cells])
    title = f"Table 2 ({task}): performance at training completion, {metric}"
    columns = ["System", unit.name, *names_in(ends, "language"), AVERAGE]
    count = ends["num_seeds"].max()
    seeds = "One seed"
    if count > 1:
        seeds = f"Mean ± standard deviation over {count} finetuning seeds"
    note = (
        f"Bold: the best. After {ends['step'].max():,} updates of step 2, whose cost is that of "
        f"one language. {seeds}."
    )
    return Table(title, columns, rows, references=unadapted, notes=[note])


def _score_cells(
    points: pd.DataFrame, scale: Scale, best: Mapping[str, float] | None = None
) -> list[Cell]:
    """Return the cells of a system's points by language."""
    return [
        scale.cell(point.mean, point.std, (best or {}).get(point.Index))
        for point in points.itertuples()
    ]


def near_maximal_table(task: str, estimates: Mapping[Key, Estimate]) -> Table:
    """Return Table 3 for one task: FLOPs to 95 % of BL_BASE's final score, with bounds."""
    by_system: dict[str, dict[str, Estimate]] = {}
    for (system, of_task, language), estimate in estimates.items():
        if of_task == task and language != AVERAGE:
            by_system.setdefault(system, {})[language] = estimate
    languages = list(next(iter(by_system.values())))
    best: dict[str, float] = {}
    largest = 0.0
    for language in languages:
        of_language = [of_system[language] for of_system in by_system.values()]
        best[language] = min(estimate.eflops for estimate in of_language)
        reached = [estimate.upper for estimate in of_language if estimate.upper < math.inf]
        largest = max([largest, *reached])
    unit = flops_unit(largest)
    rows: list[CellRow] = []
    for system, of_system in by_system.items():
        cells = [
            _estimate_cell(of_system[language], unit, best[language]) for language in languages
        ]
        mean = _mean_estimate([estimate.eflops for estimate in of_system.values()], unit)
        rows.append([name_of(system), *cells, mean])
    notes = [
        "Compute to 95 % of BL_BASE's score at training completion, interpolated linearly between "
        "the checkpoints before and after, whose compute is in brackets. ∞: never reached. *: "
        "without the languages that never reach it."
    ]
    title = f"Table 3 ({task}): {unit.name} to near-maximal performance"
    return Table(title, ["System", *languages, AVERAGE], rows, notes=notes)


def _estimate_cell(estimate: Estimate, unit: ComputeUnit, best: float) -> Cell:
    """Return a cell with the compute to a target and its bounds; ∞ where it is never reached."""
    if estimate.eflops == math.inf:
        return Cell("∞")
    bounds = f"({unit.text(estimate.lower)}–{unit.text(estimate.upper)})"
    return Cell(unit.text(estimate.eflops), bounds, estimate.eflops == best)


def _mean_estimate(eflops: Sequence[float], unit: ComputeUnit) -> str:
    """Return the mean over the languages that reach the target."""
    finite = [value for value in eflops if value < math.inf]
    if not finite:
        return "∞"
    mark = "*" if len(finite) < len(eflops) else ""
    return unit.text(statistics.fmean(finite)) + mark


def source_table(source: str, curves: pd.DataFrame) -> Table:
    """Return Table 5: final scores in the source language, whose curves are given."""
    ends = last_points(curves).xs(source, level="language")
    best = ends["mean"].groupby(level="task", observed=True).max().to_dict()
    rows: list[CellRow] = [
        [name_of(system), *_score_cells(ends.loc[system], PERCENT, best)]
        for system in names_in(ends, "system")
    ]
    title = f"Table 5: performance in the source language, {source}"
    note = "With the embeddings of that language."
    return Table(title, ["System", *names_in(ends, "task")], rows, notes=[note])


# --- before and after, over a base


def change_table(measured: Mapping[str, Sequence[Measure]]) -> Table:
    """Show what was measured before and after.

    Args:
        measured: {system and language: measures}.
    """
    rows: list[CellRow] = []
    for name, measures in measured.items():
        rows += _measured(measures, f"{name}: " if len(measured) > 1 else "")
    return _before_and_after(rows, "All text was held out of the training.")


def measures_table(measures: Sequence[Measure]) -> Table:
    """Show what was measured of two models."""
    return _before_and_after(_measured(measures))


def _measured(measures: Sequence[Measure], named: str = "") -> list[CellRow]:
    rows: list[CellRow] = []
    for measure in measures:
        change = EMPTY
        # A recall is a percentage of texts, so its difference is in points.
        if measure.unit.startswith("recall"):
            change = Cell(f"{measure.after - measure.before:+.1f}")
        elif measure.before:
            change = Cell(f"{100 * (measure.after / measure.before - 1):+.1f} %")
        rows.append([f"{named}{measure.what}", measure.unit, *measure.texts, change])
    return rows


def _before_and_after(rows: list[CellRow], note: str = "") -> Table:
    columns = ["Of what", "unit", "before", "after", "change"]
    units = [str(unit) for _, unit, *_ in rows]
    if any("bits" in unit for unit in units):
        note = f"Fewer bits are better. {note}".strip()
    return Table("Before and after", columns, rows, notes=[note] if note else [])


def samples_table(title: str, samples: Iterable[Sample], note: str) -> Table:
    """Show what is written before and after; what is right and what loops is marked."""
    rows: list[CellRow] = []
    for sample in samples:
        before = _written(sample.before, is_right=sample.was_right)
        after = _written(sample.after, is_right=sample.is_right)
        rows.append([sample.opening, before, after])
    return Table(title, ["Opening", "before", "after"], rows, notes=[note], of_text=True)


def _written(text: str, *, is_right: bool) -> Cell:
    marks = ["(right)"] if is_right else []
    if loops(text):
        marks.append("(loops)")
    return Cell(text, ", ".join(marks))


# --- costs and losses


def cost_table(costs: Sequence[Row], *, in_days: bool = True, languages: int = 1) -> Table:
    """Show the cost of every step, by the paper's formula and as this implementation executes it.

    Args:
        costs: As of `recipe_costs`.
        in_days: Whether V100 time by the formula is shown.
        languages: Count of languages that share what is paid once. Where there are several, a row
            says what each costs then.
    """
    systems = in_order(row["system"] for row in costs)
    flops = flops_unit(max((row["formula_eflops"] for row in costs), default=0))
    rows: list[CellRow] = []
    for system in systems:
        of_system = [row for row in costs if row["system"] == system]
        if languages > 1:
            of_system += _shared(of_system, languages)
        for row in of_system:
            formula = row["formula_eflops"]
            executed = row["executed_eflops"]
            figures = [flops.text(formula)]
            if in_days:
                figures.append(f"{formula / EFLOPS_PER_V100_DAY:.3g}")
            # A step without training costs nothing.
            ratio = f"{executed / formula:.2f}" if formula else ""
            figures += [flops.text(executed), ratio]
            rows.append([name_of(system), row["step"], *figures])
    by_formula = ", and V100 time by it at 30 TFLOP/s" if in_days else ""
    notes = [
        f"Formula: the paper's appendix A.1{by_formula}. Executed: the matrix products that run "
        "here, those of recomputed layers once. Both are computed from the sizes, not measured. "
        "adapt is for one language."
    ]
    if "minipost" in systems:
        notes[0] += " MiniPost's pretraining is BL_BASE's and is paid once."
    if costs and not any(row["step"] == "pretrain" for row in costs):
        notes.append(
            "The body was pretrained elsewhere; what that took is not known and not counted."
        )
    columns = ["System", "Step", f"formula, {flops.name}"]
    if in_days:
        columns.append("V100 days")
    columns += [f"executed, {flops.name}", "executed ÷ formula"]
    return Table("Cost of each step", columns, rows, notes=notes)


def _shared(rows: Sequence[Row], languages: int) -> list[Row]:
    """Return a row of the cost of each language where several share the steps before adapt.

    There is none where there are no such steps.
    """
    if len(rows) == 1:
        return []
    each: dict[str, Any] = {"step": f"each of {languages} languages"}
    for kind in ("formula_eflops", "executed_eflops"):
        each[kind] = sum(
            row[kind] if row["step"] == "adapt" else row[kind] / languages for row in rows
        )
    return [each]


def fertility_table(rows: Sequence[Row]) -> Table:
    """Show the rows of `fertility`, the best of each language in bold."""
    columns = [
        "Language",
        "new tokens",
        "tokens per word",
        "bytes per token",
        "rarest one",
        "pack, MB",
        "MFLOP per byte",
    ]
    cells = [
        [
            row["language"],
            Cell(f"{row['new_pieces']:,}", best=row["best"]),
            f"{row['tokens_per_word']:.2f}",
            f"{row['bytes_per_token']:.2f}",
            "–" if row["rarest"] is None else f"{row['rarest']:,}",
            f"{row['output_megabytes']:.1f}",
            Cell(f"{row['flops_per_byte'] / 1e6:.1f}", best=row["best"]),
        ]
        for row in rows
    ]
    title = (
        "What new tokens bring. Bold: the cheapest count whose tokens all occur "
        f"{MIN_OCCURRENCES} times in the text and leave at most {MAX_UNKNOWN:.0%} of it unknown"
    )
    return Table(title, columns, cells)


def held_out_table(losses: Iterable[Row]) -> Table:
    """Show held-out loss after the last step of every training, and at the best one."""
    note = (
        "Nats per token of text that was not trained on, after the last step; for step 2 (adapt) "
        "with the pack plugged into the whole body. Beside it the lowest loss of the training, "
        "where that is another one; for step 2 that of the best snapshot."
    )
    cells: dict[tuple[str, str, str], Cell] = {}
    for row in losses:
        if row["held_out"]:
            last, loss = row["held_out"][-1]
            best, lowest = min(row["held_out"], key=operator.itemgetter(1))
            detail = "" if best == last else f"best {lowest:.3f} at step {best:,}"
            cells[row["system"], row["stage"], row["language"]] = Cell(f"{loss:.3f}", detail)
    stages = ["pretrain", "build-mini", "adapt"]
    trained = dict.fromkeys((stage, language) for _, stage, language in cells)
    columns = sorted(trained, key=lambda column: stages.index(column[0]))
    rows: list[CellRow] = [
        [name_of(system), *(cells.get((system, *column), EMPTY) for column in columns)]
        for system in in_order(system for system, _, _ in cells)
    ]
    names = [" ".join(column) for column in columns]
    return Table("Held-out loss", ["System", *names], rows, notes=[note])
