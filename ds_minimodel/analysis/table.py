"""A table as data, and what tables and plots read off a set of curves; render.py prints tables."""

from dataclasses import dataclass, field
from typing import NamedTuple

from ds_minimodel.analysis.curves import AVERAGE
from ds_minimodel.analysis.display import in_order


class Cell(NamedTuple):
    """One entry: what is said, what qualifies it (± or bounds), and whether it is the best of its column."""

    text: str
    detail: str = ""
    best: bool = False


EMPTY = Cell("–")


@dataclass(frozen=True)
class Table:
    """`references` are rows that the others compare with; each row holds one Cell for each of `columns`."""

    title: str
    columns: list
    rows: list
    references: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def tasks_of(curves):
    return list(dict.fromkeys(task for _, task, _ in curves))


def systems_of(curves, task=None):
    return in_order(system for system, of_task, _ in curves if task in (None, of_task))


def languages_of(curves, task):
    """Languages that `task` was scored in, without the average."""
    return list(dict.fromkeys(language for _, of_task, language in curves
                              if of_task == task and language != AVERAGE))


def adapt_costs(costs):
    """{system: EFLOPs of step 2 for one language, by the paper's formula} from the rows of recipe_costs."""
    return {row["system"]: row["formula_eflops"] for row in costs if row["step"] == "adapt"}


def final_score(curves, system, task, language=AVERAGE):
    """Score at training completion, or None where the system has none."""
    curve = curves.get((system, task, language))
    return curve[-1].mean if curve else None


def score_cell(point, best=None):
    """Mean and deviation of a curve's point; the best one's mean is printed bold."""
    if point is None:
        return EMPTY
    return Cell(f"{point.mean:.1f}", "" if point.std is None else f"±{point.std:.1f}", point.mean == best)


def estimate_cell(estimate, unit, best=None):
    """Compute to a target with its bounds; ∞ where it is never reached."""
    if estimate is None:
        return EMPTY
    if estimate.eflops == float("inf"):
        return Cell("∞")
    return Cell(unit.of(estimate.eflops), f"({unit.of(estimate.lower)}–{unit.of(estimate.upper)})",
                estimate.eflops == best)
