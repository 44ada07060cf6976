"""The states of a recipe's jobs, read from the workdir while ranks may be at work in it.

Nothing is written.
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

LAST_RECORDS = 5  # of a run's metrics, by which its rate is told


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training run.

    Attributes:
        step: Optimizer steps done.
        steps: Optimizer steps in all.
        rate: Steps a second, by the last reports.
        seconds_left: Until the end, at that rate.
    """

    step: int
    steps: int
    rate: float
    seconds_left: float


@dataclass(frozen=True)
class JobStatus:
    """State of a job.

    Attributes:
        step: Name of its step.
        name: Its folder below the workdir.
        state: A value of `State`.
        why: Reason of the state, or who works on the job; "" where nothing is to be said.
        training: Progress of its training run.
        bytes: Size of all that it has on disk.
    """

    step: str
    name: str
    state: str
    why: str
    training: TrainingProgress | None
    bytes: int


def look(recipe: Recipe, *, verify: bool = False) -> list[JobStatus]:
    """Return the state of every job in the order of the steps.

    Args:
        recipe: What the jobs are of.
        verify: Whether every byte of what is complete is read.

    Raises:
        UserError: A file that the recipe names is missing.
    """
    return [
        _status(recipe, step, job, verify=verify)
        for step in steps_of(recipe)
        for job in step.jobs(recipe)
    ]


def _status(recipe: Recipe, step: Step, job: Job, *, verify: bool) -> JobStatus:
    state, why = state_of(job, WorkdirLayout(recipe.workdir), verify=verify)
    has_trained = state in (State.RUNNING, State.UNFINISHED, State.COMPLETE)
    training = training_in(job.folder / "run") if has_trained else None
    name = os.path.relpath(job.folder, recipe.workdir)
    return JobStatus(
        step=step.name,
        name=name,
        state=state.value,
        why=why,
        training=training,
        bytes=_size(job.folder),
    )


def training_in(folder: Path) -> TrainingProgress | None:
    """Return the progress of the training run in a job's folder `run`.

    None where it has not begun, is being written at this moment, or is damaged.
    """
    try:
        facts = read_json(folder / "run.json")
        steps = int(facts["steps"])
        per_step = float(facts["tokens_per_step"])
        with open(folder / "metrics.jsonl", encoding="utf-8") as file:
            # A line without an end is being written.
            complete_lines = (line for line in file if line.endswith("\n"))
            last_lines = collections.deque(complete_lines, maxlen=LAST_RECORDS)
        # The record of step 0 is of an evaluation before training.
        records = [record for record in map(json.loads, last_lines) if record["step"]]
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
        return None


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all below a folder; what is gone meanwhile counts none."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(path / name) for name in os.listdir(path))
    except OSError:
        return 0
