"""What a recipe's jobs have come to, read from the workdir while ranks may be at work in it; nothing is written."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json
from ds_minimodel.pipeline.order import STEPS, Step
from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.recipe.jobs import Job, State, record_of, state_of

if TYPE_CHECKING:
    from ds_minimodel.recipe.schema import Recipe

_TAIL = 1 << 14  # bytes of metrics.jsonl that hold the newest records
# Steps that train, and how many parts of their folders' names jobs that take the same time have in common.
_ALIKE = {"pretrain": 2, "build-mini": 2, "adapt": 2, "finetune": 3}


@dataclass(frozen=True)
class TrainingProgress:
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
    training: TrainingProgress | None
    bytes: int


@dataclass(frozen=True)
class Left:
    """Training that is left: seconds of it in `jobs` jobs; `unknown` are those that nothing tells about yet."""

    seconds: float
    jobs: int
    unknown: int


class Watch:
    """The jobs of a recipe, looked at as often as asked.

    What is complete is not read again as long as its record is the same: a corpus whose times have changed is hashed
    for that. planned: {(system, step): seconds of a job}; without them jobs compare by their FLOPs. verify: read every
    byte of what is complete.
    """

    def __init__(
        self, recipe: Recipe, planned: Mapping[tuple[str, str], float] | None = None, verify: bool = False
    ) -> None:
        self.recipe, self.root, self.verify = recipe, Path(recipe.workdir), verify
        self._complete: dict[Path, int] = {}  # folder -> time of its record
        self._took: dict[str, float] = {}  # name of a job that trained, or trains -> seconds of all of it
        flops = {(row["system"], row["step"]): row["executed_eflops"] for row in recipe_costs(recipe)}
        self._work = {_name_of(recipe, system, step): work for (system, step), work in (planned or flops).items()}
        self._pace = 1.0 if planned else None  # seconds for a unit of work where nothing was measured

    def look(self) -> list[JobStatus]:
        """Every job in the order of the steps; UserError where a file that the recipe names is missing."""
        return [self._status(step, job) for step in wanted_steps(self.recipe) for job in step.jobs(self.recipe)]

    def left(self, jobs: Sequence[JobStatus]) -> Left:
        """What the training of `jobs`, as last looked at, still takes.

        A job takes as long as those of its kind that were measured, else in proportion to its work.
        """
        groups: dict[str, list[float]] = {}
        for name, seconds in self._took.items():
            groups.setdefault(_alike(name), []).append(seconds)
        whole = {group: statistics.fmean(seconds) for group, seconds in groups.items()}
        paces = {group: whole[group] / self._work[group] for group in whole.keys() & self._work.keys()}
        found: list[float | None] = []
        for job in jobs:
            group = _alike(job.name)
            if job.state == "complete" or (job.step != "finetune" and group not in self._work):
                continue
            near = [pace for of_group, pace in paces.items() if of_group.startswith(f"{job.step}/")]
            pace = statistics.fmean(near or paces.values()) if paces else self._pace
            takes = whole.get(group, self._work[group] * pace if pace and group in self._work else None)
            done = job.training.step / job.training.steps if job.training else 0.0
            found.append(None if takes is None else takes * (1 - done))
        known = [seconds for seconds in found if seconds is not None]
        return Left(sum(known), len(known), len(found) - len(known))

    def _status(self, step: Step, job: Job) -> JobStatus:
        name = os.path.relpath(job.folder, self.root)
        state, why = State.COMPLETE, ""
        written = _modified(record_of(job.folder))
        is_known = written is not None and self._complete.get(job.folder) == written
        if not is_known:
            state, why = state_of(job, self.verify)
        if state is State.COMPLETE and written is not None:
            self._complete[job.folder] = written
        at_work = state in (State.RUNNING, State.UNFINISHED)
        training = None
        if step.name in _ALIKE and (at_work or (state is State.COMPLETE and not is_known)):
            measured = training_in(job.folder / "run", is_running=state is not State.UNFINISHED)
            training = measured if at_work else None
            if measured and measured.rate:
                self._took[name] = measured.steps / measured.rate
        return JobStatus(step.name, name, state.value, why, training, size_of(job.folder))


def _name_of(recipe: Recipe, system: str, step: str) -> str:
    """What the folders of a step's jobs for a system begin with."""
    bodies = {one.name: one.body_name for one in recipe.chosen_systems}
    return f"{step}/{bodies[system] if step == 'pretrain' else system}"


def _alike(name: str) -> str:
    """What the names of jobs that take the same time begin with."""
    parts = name.split("/")
    return "/".join(parts[: _ALIKE.get(parts[0], len(parts))])


def wanted_steps(recipe: Recipe) -> list[Step]:
    """The steps that the recipe has work for."""
    return [step for step in STEPS.values() if recipe.finetune.tasks or not step.needs_tasks]


def training_in(folder: Path, is_running: bool) -> TrainingProgress | None:
    """The training run in a job's folder `run`, None before its first report."""
    try:
        facts = read_json(folder / "run.json")
        steps, per_step = int(facts["steps"]), float(facts["tokens_per_step"])
        records = [record for record in _newest(folder / "metrics.jsonl") if record["step"]]  # 0: before training
        step = int(records[-1]["step"])
        rates = [float(record["tokens_per_second"]) / per_step for record in records[-5:]]
        if not (0 <= step <= steps > 0 and all(0 <= rate < math.inf for rate in rates)):
            return None
    except (UserError, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return None  # not begun, being written at this moment, or damaged
    rate = sum(rates) / len(rates) if is_running else None
    return TrainingProgress(step, steps, rate, (steps - step) / rate if rate else None)


def _newest(path: Path) -> Iterator[dict[str, Any]]:
    """The last records of a file of JSON lines, whole ones only."""
    if not path.is_file():
        return
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
