"""What a recipe's jobs have come to, read from the workdir while ranks may be at work in it;
nothing is written.
"""

from __future__ import annotations

import collections
import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import Job, State, state_of
from ds_minimodel.pipeline.registry import Step, steps_of

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe


@dataclass(frozen=True)
class TrainingProgress:
    """A training run: optimizer steps done and in all, steps a second of late, seconds left at that
    rate.
    """

    step: int
    steps: int
    rate: float
    seconds_left: float


@dataclass(frozen=True)
class JobStatus:
    """A job: its step, its folder below the workdir, its state and why, its training, bytes of all
    that it has.
    """

    step: str
    name: str
    state: str
    why: str
    training: TrainingProgress | None
    bytes: int


def look(recipe: Recipe, verify: bool = False) -> list[JobStatus]:
    """Return the state of every job in the order of the steps.

    Args:
        recipe: that the jobs are of.
        verify: read every byte of what is complete.

    Raises:
        UserError: a file that the recipe names is missing.
    """
    return [
        _status(recipe, step, job, verify) for step in steps_of(recipe) for job in step.jobs(recipe)
    ]


def _status(recipe: Recipe, step: Step, job: Job, verify: bool) -> JobStatus:
    state, why = state_of(job, WorkdirLayout(recipe.workdir), verify)
    has_trained = state in (State.RUNNING, State.UNFINISHED, State.COMPLETE)
    training = training_in(job.folder / "run") if has_trained else None
    name = os.path.relpath(job.folder, recipe.workdir)
    return JobStatus(step.name, name, state.value, why, training, _size(job.folder))


def training_in(folder: Path) -> TrainingProgress | None:
    """The training run in a job's folder `run`, None before its first report."""
    try:
        facts = read_json(folder / "run.json")
        steps = int(facts["steps"])
        per_step = float(facts["tokens_per_step"])
        with open(folder / "metrics.jsonl", encoding="utf-8") as file:
            lines = collections.deque(
                (line for line in file if line.endswith("\n")), 5
            )  # else it is being written
        records = [
            record for record in map(json.loads, lines) if record["step"]
        ]  # 0: before training
        step = int(records[-1]["step"])
        rate = statistics.fmean(
            float(record["tokens_per_second"]) / per_step for record in records[1:] or records
        )
        return TrainingProgress(step, steps, rate, (steps - step) / rate)
    except (
        UserError,
        OSError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        RecursionError,
    ):
        return None  # not begun, being written at this moment, or damaged


def _size(path: Path) -> int:
    """Bytes of a file, or of all below a folder; of what is gone meanwhile, none."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(path / name) for name in os.listdir(path))
    except OSError:
        return 0
