"""What a recipe's jobs have come to, read from the workdir while ranks may be at work in it; nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json
from ds_minimodel.pipeline.order import STEPS, Step
from ds_minimodel.recipe.jobs import Job, State, record_of, state_of

if TYPE_CHECKING:
    from ds_minimodel.recipe.schema import Recipe

_TAIL = 1 << 14  # bytes of metrics.jsonl that hold the newest records


@dataclass(frozen=True)
class Training:
    """A training run: optimizer steps done and in all, steps a second, seconds left at that rate (None: unknown)."""

    step: int
    steps: int
    rate: float | None
    seconds_left: float | None


@dataclass(frozen=True)
class JobStatus:
    """A job: its step, its folder below the workdir, its state and why, its training, bytes of all that it has."""

    step: str
    name: str
    state: str
    why: str
    training: Training | None
    bytes: int


class Watch:
    """The jobs of a recipe, looked at as often as asked.

    What is complete is not read again as long as its record is the same: a corpus whose times have changed is hashed
    for that.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.root = recipe, Path(recipe.workdir)
        self._complete: dict[Path, int] = {}  # folder -> time of its record

    def look(self) -> list[JobStatus]:
        """Every job in the order of the steps; UserError where a file that the recipe names is missing."""
        return [self._status(step, job) for step in wanted_steps(self.recipe) for job in step.jobs(self.recipe)]

    def _status(self, step: Step, job: Job) -> JobStatus:
        state, why = State.COMPLETE, ""
        written = _modified(record_of(job.folder))
        if written is None or self._complete.get(job.folder) != written:
            state, why = state_of(job)
        if state is State.COMPLETE and written is not None:
            self._complete[job.folder] = written
        at_work = state in (State.RUNNING, State.UNFINISHED)
        training = training_in(job.folder / "run", is_running=state is State.RUNNING) if at_work else None
        name = os.path.relpath(job.folder, self.root)
        return JobStatus(step.name, name, state.value, why, training, size_of(job.folder))


def wanted_steps(recipe: Recipe) -> list[Step]:
    """The steps that the recipe has work for."""
    return [step for step in STEPS.values() if recipe.finetune.tasks or not step.needs_tasks]


def training_in(folder: Path, is_running: bool) -> Training | None:
    """The training run in a job's folder `run`, None before its first report."""
    try:
        facts = read_json(folder / "run.json")
        steps, per_step = int(facts["steps"]), float(facts["tokens_per_step"])
        records = list(_newest(folder / "metrics.jsonl"))
        step = int(records[-1]["step"])
        rates = [float(record["tokens_per_second"]) / per_step for record in records[-5:]]
    except (UserError, OSError, LookupError, TypeError, ValueError, ZeroDivisionError):
        return None  # not begun, or being written at this moment
    rate = sum(rates) / len(rates) if is_running else None
    return Training(step, steps, rate, (steps - step) / rate if rate else None)


def _newest(path: Path) -> Iterator[dict[str, Any]]:
    """The last records of a file of JSON lines, whole ones only."""
    with open(path, "rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL)
        file.seek(start)
        *lines, _unfinished = file.read().split(b"\n")
    yield from (json.loads(line) for line in lines[1 if start else 0 :])


def size_of(*places: Path) -> int:
    """Bytes of files and of all below folders; of what is gone meanwhile, none."""
    return sum(_size(path) for path in places)


def _size(path: Path) -> int:
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(_size(path / name) for name in os.listdir(path))
    except OSError:
        return 0


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
