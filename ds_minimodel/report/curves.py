"""Training curves of a run, compute to near-maximal performance, and speedups.

They are those of the paper's section 4.2 and Figure 1. Every system has every task, language, seed
and step: score rows are those of one run (pipeline/steps/report.py).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from ds_minimodel.common.files import Amount, Count, Stored, read_model_lines
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import BASELINE, SYSTEMS
from ds_minimodel.evaluation.changes import Changes
from ds_minimodel.evaluation.comparison import Kept

# Scores or costs, as JSON holds them.
Row = Mapping[str, Any]

NEAR_MAXIMAL = 0.95  # share of the baseline's final score
AVERAGE = "avg"  # stands as the language of an average over languages
ALL_TASKS = "all tasks"

Key = tuple[str, str, str]
KEY = ["system", "task", "language"]

SCORES_FILE = "scores.json"
# Scores that are shown for a task that has one of them, and their units; lower is better.
BITS = {"bits_per_byte": "bits per byte", "bits_per_hidden_byte": "bits per byte of hidden words"}
# Prefixes of the names of scores. The first: scores with the source language's pack, which are
# those of the untouched model. The second: scores of an added language's pack on the source's
# texts; with "cut", the percentage of their bytes that are in new tokens.
OF_SOURCE = "source_pack_"
ON_SOURCE = "on_source_"


def name_of(system: str) -> str:
    """Return the printed name of a system."""
    return SYSTEMS[system].title


def in_order(systems: Iterable[str]) -> list[str]:
    """Return the distinct systems in the paper's order."""
    present = set(systems)
    return [name for name in SYSTEMS if name in present]


class ComputeUnit(NamedTuple):
    """Unit of compute, and how many of it are an EFLOP."""

    name: str
    per_eflop: float

    def text(self, eflops: float) -> str:
        """Return `eflops` in this unit, with at most three significant digits; ∞ where infinite."""
        value = eflops * self.per_eflop
        if value == math.inf:
            return "∞"
        if value >= 99.95:
            return f"{value:.0f}"
        if value >= 9.995:
            return f"{value:.1f}"
        return f"{value:.3f}" if 0 < value < 0.1 else f"{value:.2f}"


_FLOPS = [
    ComputeUnit("EFLOPs", 1),
    ComputeUnit("PFLOPs", 1e3),
    ComputeUnit("TFLOPs", 1e6),
    ComputeUnit("GFLOPs", 1e9),
]


def flops_unit(largest_eflops: float) -> ComputeUnit:
    """Return the largest unit of FLOPs in which `largest_eflops` is at least 1.

    Runs on a laptop cost PFLOPs, not EFLOPs.
    """
    return next((unit for unit in _FLOPS if largest_eflops * unit.per_eflop >= 1), _FLOPS[-1])


class Estimate(NamedTuple):
    """Compute at which a target is reached.

    Attributes:
        eflops: The estimate.
        lower: Compute of the checkpoint before.
        upper: Compute of the checkpoint after.
    """

    eflops: float
    lower: float
    upper: float


NEVER = Estimate(math.inf, math.inf, math.inf)


def training_curves(rows: Iterable[Row], metric: str = "score") -> pd.DataFrame:
    """Return the checkpoints of score rows.

    Tasks and languages are in the order of the rows that have `metric`. "avg" is the mean over a
    task's languages; its deviation is that of the seeds' means.

    Args:
        rows: Of scores.
        metric: Column of the score.

    Returns:
        Columns eflops, mean, std (NaN with one seed) and num_seeds by system, task, language and
        step.
    """
    points = ["system", "task", "language", "step"]
    scores = pd.DataFrame(
        [row for row in rows if metric in row], columns=[*points, "seed", "eflops", metric]
    )
    averages = scores.groupby(["system", "task", "step", "seed"], as_index=False)[
        ["eflops", metric]
    ].mean()
    scores = pd.concat([scores, averages.assign(language=AVERAGE)])
    orders = {
        "system": in_order(scores["system"]),
        **{name: scores[name].unique() for name in KEY[1:]},
    }
    for name, order in orders.items():
        scores[name] = pd.Categorical(scores[name], order, ordered=True)
    groups = scores.groupby(points, observed=True)
    return groups.agg(
        eflops=("eflops", "mean"),
        mean=(metric, "mean"),
        std=(metric, "std"),
        num_seeds=("seed", "size"),
    )


def last_points(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the points at training completion, by system, task and language."""
    return curves.groupby(KEY, observed=True).tail(1).reset_index("step")


def first_points(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the first points, by system, task and language."""
    return curves.groupby(KEY, observed=True).head(1).reset_index("step")


def names_in(curves: pd.DataFrame, level: str) -> list[str]:
    """Return the systems, tasks or languages that have a curve, in the order of the rows.

    The average over languages is not among them.
    """
    return [name for name in curves.index.unique(level) if name != AVERAGE]


def near_maximal(curves: pd.DataFrame) -> dict[Key, Estimate]:
    """Return the compute of every curve to 95 % of BL_BASE's score at training completion.

    Without BL_BASE there is none.
    """
    if BASELINE not in names_in(curves, "system"):
        return {}
    targets = NEAR_MAXIMAL * last_points(curves)["mean"].loc[BASELINE]
    return {
        (system, task, language): compute_to_reach(curve, targets[task, language])
        for (system, task, language), curve in curves.groupby(KEY, observed=True)
    }


def compute_to_reach(curve: pd.DataFrame, target: float) -> Estimate:
    """Return the compute at which `curve` (eflops, mean) first scores `target`.

    It is interpolated linearly between two checkpoints. It is 0 where a first checkpoint at 0
    EFLOPs reaches the target. Where the first checkpoint does but has cost something, nothing is
    known before it: the estimate is its cost, the lower bound 0. It is NEVER where no checkpoint
    reaches the target.
    """
    eflops = curve["eflops"].to_numpy()
    scores = curve["mean"].to_numpy()
    is_reached = scores >= target
    if not is_reached.any():
        return NEVER
    after = int(is_reached.argmax())
    if after == 0:
        return Estimate(float(eflops[0]), 0.0, float(eflops[0]))
    before = after - 1
    cost = np.interp(target, scores[[before, after]], eflops[[before, after]])
    return Estimate(float(cost), float(eflops[before]), float(eflops[after]))


class Speedup(NamedTuple):
    """Speedup of a system over BL_BASE.

    Attributes:
        value: How many times less compute it takes to near-maximal performance; 0 where it never
            gets there, or BL_BASE is there unadapted.
        low: The smallest value on curves of single seeds.
        high: The largest.
        at_equal_compute: Its score − BL_BASE's where the cheaper of the two ends, in points.
        reaches: Whether it ever gets there.
    """

    value: float
    low: float
    high: float
    at_equal_compute: float
    reaches: bool


def speedups(rows: Sequence[Row]) -> dict[str, dict[str, Speedup]]:
    """Return {system: {task, or "all tasks": Speedup}} of all systems but BL_BASE.

    Without BL_BASE there is none. A single task stands only as "all tasks".
    """
    columns = ["system", "task", "language", "seed", "step", "eflops", "score"]
    scores = pd.DataFrame(rows, columns=columns)
    systems = in_order(scores["system"])
    if BASELINE not in systems:
        return {}
    tasks = list(scores["task"].unique())
    groups = {ALL_TASKS: tasks}
    if len(tasks) > 1:
        groups |= {task: [task] for task in tasks}
    return {
        system: {
            name: _speedup(scores[scores["task"].isin(members)], system)
            for name, members in groups.items()
        }
        for system in systems
        if system != BASELINE
    }


def _speedup(scores: pd.DataFrame, system: str) -> Speedup:
    curve = _pooled(scores, system)
    base = _pooled(scores, BASELINE)
    # Tasks that are not finetuned have one seed. Only a seed that has all tasks has a curve.
    counts = scores.groupby("seed")[["task", "language"]].nunique()
    ratios: list[float] = []
    for seed in counts.index[(counts == counts.max()).all(axis=1)]:
        of_seed = scores[scores["seed"] == seed]
        ratios.append(_ratio(_pooled(of_seed, system), _pooled(of_seed, BASELINE)))
    cheaper = min(curve["eflops"].iloc[-1], base["eflops"].iloc[-1])
    score = float(np.interp(cheaper, curve["eflops"], curve["mean"]))
    base_score = float(np.interp(cheaper, base["eflops"], base["mean"]))
    target = NEAR_MAXIMAL * base["mean"].iloc[-1]
    return Speedup(
        value=_ratio(curve, base),
        low=min(ratios),
        high=max(ratios),
        at_equal_compute=score - base_score,
        reaches=compute_to_reach(curve, target).eflops < math.inf,
    )


def _pooled(scores: pd.DataFrame, system: str) -> pd.DataFrame:
    """Return a system's curve, averaged over seeds, then over tasks and languages."""
    of_system = scores[scores["system"] == system].rename(columns={"score": "mean"})
    cells = of_system.groupby(["task", "language", "step"])[["eflops", "mean"]].mean()
    return cells.groupby("step").mean()


def _ratio(curve: pd.DataFrame, base: pd.DataFrame) -> float:
    """Return BL_BASE's compute over the system's.

    A system that is there unadapted counts with its next checkpoint.
    """
    target = NEAR_MAXIMAL * base["mean"].iloc[-1]
    spent = compute_to_reach(curve, target).eflops
    if spent == 0 and len(curve) > 1:
        spent = curve["eflops"].iloc[1]
    return compute_to_reach(base, target).eflops / spent if 0 < spent < math.inf else 0.0


class LossRecord(Stored):
    """Fields that are read of a line of metrics.jsonl; that of step 0 has only held-out losses."""

    step: Count
    eflops: Amount = 0.0  # by formula, as tflops_per_second is
    tflops_per_second: Amount = math.inf
    memory_gib: Amount = 0.0
    held_out: Amount | None = Field(None, alias="held_out/nats_per_token")
    held_out_of_body: Amount | None = Field(None, alias="held_out/body_nats_per_token")


def read_losses(path: Path, system: str, stage: str, language: str) -> Row | None:
    """Return the loss row of one run, None without a log.

    It has held_out, [(step, nats per token)]; the hours of steps; and the most memory in GiB.
    """
    advice = "put it back from a copy, or delete it: nothing but the report reads it"
    records = read_model_lines(path, LossRecord, advice)
    if not any(record.step for record in records):
        return None
    of_body = any(record.held_out_of_body is not None for record in records)
    held_out: list[tuple[int, float]] = []
    seconds = 0.0
    eflops = 0.0
    for record in records:
        loss = record.held_out_of_body if of_body else record.held_out
        if loss is not None:
            held_out.append((record.step, loss))
        if record.tflops_per_second:
            seconds += (record.eflops - eflops) * 1e6 / record.tflops_per_second
        eflops = record.eflops
    return {
        "system": system,
        "stage": stage,
        "language": language,
        "held_out": held_out,
        "hours": seconds / 3600,
        "memory_gib": max(record.memory_gib for record in records),
    }


class ScoreRow(Stored):
    """Score row in a file."""

    __pydantic_extra__: dict[str, Amount]

    system: str
    task: str
    language: str
    seed: Annotated[int, Field(ge=0)]
    step: Count
    eflops: Amount
    score: Amount


def shown_score(row: Row, metric: str) -> tuple[str, str]:
    """Return (column, name) of the score that a sentence or a card shows of rows like this.

    `metric` is the name of the column "score".
    """
    for column, unit in BITS.items():
        if column in row:
            return column, unit
    return "score", metric


def further_columns(rows: Iterable[Row]) -> list[str]:
    """Return the names of the further scores in score rows, in alphabetical order."""
    return sorted({name for row in rows for name in row} - ScoreRow.model_fields.keys())


@dataclass(frozen=True)
class RunResults:
    """Results of a recipe in its workdir.

    Attributes:
        recipe: What was run.
        facts: {label: text} about recipe, device and versions.
        metrics: {task: name of its score}.
        scores: Of all languages and steps with every seed.
        losses: Rows of `read_losses`.
        fertility: Rows of pipeline/fertility.py where a base's vocabulary is extended.
        compressed: {(task, language): bits per byte that xz takes}.
        kept: {(system, language): comparison of a decoder with the untouched one}.
        changes: {(system, language): comparison of an encoder with the untouched one}.
    """

    recipe: Recipe
    facts: Mapping[str, str]
    metrics: Mapping[str, str]
    scores: Sequence[Row]
    losses: Sequence[Row]
    fertility: Sequence[Row] = ()
    compressed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    kept: Mapping[tuple[str, str], Kept] = field(default_factory=dict)
    changes: Mapping[tuple[str, str], Changes] = field(default_factory=dict)

    @property
    def target_scores(self) -> list[Row]:
        """Scores in the target languages."""
        return [row for row in self.scores if row["language"] != self.recipe.languages.source]

    @property
    def source_scores(self) -> list[Row]:
        """Scores in the source language."""
        return [row for row in self.scores if row["language"] == self.recipe.languages.source]
