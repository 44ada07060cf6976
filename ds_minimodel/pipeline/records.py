"""Jobs and their records, which tell what is complete, unfinished, or made from another recipe.

A job makes all that lies in one folder. A record beside the folder (`NAME.job.json`) says what it
is made from: the parts of the recipe that matter to it and the identity of its parents. The same
inputs mean the same artifacts; so a complete job is skipped, an unfinished one goes on, and one
made from other inputs is refused, never overwritten. Where a job may grow, more steps do not count
as other inputs: it goes on, then its children do.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.pipeline.layout import WorkdirLayout, command_of

MAX_DIFFERENCE = 200  # characters of a difference that a message shows


@dataclass(frozen=True)
class Job:
    """One unit of work of a step.

    Attributes:
        folder: Where all of it lies.
        inputs: JSON values and Contents that decide the outcome.
        parents: Folders of the jobs that it reads.
        make: Makes the artifacts below `folder`. It is called on every rank where the step runs on
            several.
        clean_up: Removes what only an unfinished job needs.
        grows: Section of `inputs` whose `steps` may grow.
        go_back: Called with its former inputs before a job that has grown goes on; removes what the
            longer job would not have made.
        has_record: False for what is made anew whenever its step is asked for.
    """

    folder: Path
    inputs: dict[str, Any]
    parents: Sequence[Path]
    make: Callable[[], None]
    clean_up: Callable[[], None] = lambda: None
    grows: str = ""
    go_back: Callable[[dict[str, Any]], None] = lambda _: None
    has_record: bool = True


class Record(files.Stored):
    """Record of a job.

    Attributes:
        inputs: What it is made from.
        complete: Whether it is finished.
        artifacts: {folder: hash of its manifest} of all that it made.
        former: Identities that it had before it went on.
        hashes: {stamp: SHA-256} of the Contents in its inputs.
    """

    inputs: dict[str, Any]
    complete: bool
    artifacts: dict[files.NameInside, files.Sha256] = {}
    former: list[files.Sha256] = []
    hashes: dict[str, files.Sha256] = {}

    @property
    def identity(self) -> str:
        """Hash by which children know the job; one made again to the same artifacts keeps it."""
        made = {"artifacts": self.artifacts} if self.complete else {}
        return files.sha256_of_json({"inputs": self.inputs, "complete": self.complete, **made})


def record_of(folder: Path) -> Path:
    """Return the file of the record of the job that lies in `folder`."""
    return folder.with_name(f"{folder.name}.job.json")


def read_record(folder: Path) -> Record | None:
    """Return the record of the job that lies in `folder`, None where it was never begun.

    Raises:
        UserError: The record is damaged.
    """
    path = record_of(folder)
    if not os.path.lexists(path):
        return None
    return files.read_model(path, Record, _make_again(folder))


def inputs_hash(folder: Path, grows: str = "") -> str:
    """Return a hash of what the job that lies in `folder` is made from; a checkpoint holds it.

    Args:
        folder: Of the job.
        grows: As of the Job. One that may grow goes on from a checkpoint also where a parent has
            gone on: `is_complete` has judged which parents those may be.
    """
    record = read_record(folder)
    assert record is not None
    inputs = record.inputs
    if grows:
        inputs = {
            **inputs,
            grows: {**inputs[grows], "steps": None},
            "parents": sorted(inputs["parents"]),
        }
    return files.sha256_of_json(inputs)


def current_inputs(
    job: Job, record: Record | None, *, to_be_read: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (what `job` would be made from now, hashes), as a record holds them.

    Args:
        job: To be done.
        record: The job's, whose hashes are reused for files that have not changed.
        to_be_read: Whether all artifacts of its parents must be there.

    Raises:
        UserError: A parent is not finished, or is no longer what it was when it was finished.
    """
    parents = {}
    for folder in job.parents:
        parent = read_record(folder)
        if parent is None or not parent.complete:
            raise UserError(
                f"{folder}: missing or not finished; run the step that makes it, or "
                f"{command_of(folder)}"
            )
        # It raises where an artifact has changed; one that is missing matters to a reader only.
        is_all_there = _is_as_made(folder, parent)
        if to_be_read and not is_all_there:
            raise UserError(
                f"{folder}: no longer all there; run the step that makes it, or "
                f"{command_of(folder)}"
            )
        # Paths are relative: a workdir may be moved.
        parents[os.path.relpath(folder, job.folder)] = parent.identity
    return files.as_json({**job.inputs, "parents": parents}, record.hashes if record else {})


def is_complete(job: Job) -> bool:
    """Return whether `job` has nothing left to do.

    Raises:
        UserError: The job was made from other inputs, or is damaged.
    """
    record = read_record(job.folder)
    if record is None:
        return False
    difference, goes_on = difference_of(job, record)
    if difference and not goes_on:
        raise UserError(
            f"{job.folder}: made from another recipe or other data ({difference}); use another "
            "workdir, or `ds-minimodel run RECIPE --rebuild`, which moves it aside and makes it "
            "again"
        )
    return record.complete and not goes_on and _is_as_made(job.folder, record)


def difference_of(job: Job, record: Record) -> tuple[str, bool]:
    """Compare a record's inputs with those that `job` has now.

    A job goes on to more steps of the section `job.grows`, and where parents have gone on.

    Returns:
        (the first difference, "" where there is none; whether the job goes on from the old inputs).

    Raises:
        UserError: As of `current_inputs`.
    """
    differences = list(_differences(record.inputs, current_inputs(job, record)[0]))
    if not differences:
        return "", False
    parents = {
        f"parents.{os.path.relpath(folder, job.folder)}": read_record(folder)
        for folder in job.parents
    }

    def is_growth(key: str, old: Any, new: Any) -> bool:
        if key == f"{job.grows}.steps":
            return isinstance(old, int) and old < new
        parent = parents.get(key)
        return parent is not None and old in parent.former

    key, old, new = differences[0]
    first = f"{key}: {old} -> {new}"[:MAX_DIFFERENCE]
    return first, all(is_growth(*difference) for difference in differences)


def refuse_if_stale(job: Job) -> None:
    """Raise UserError where `is_complete` would, as far as the parents of `job` tell already."""
    parents = map(read_record, job.parents)
    if all(record is not None and record.complete for record in parents):
        is_complete(job)


class State(Enum):
    """State of a job, told without doing anything for it."""

    COMPLETE = "complete"
    RUNNING = "running"
    UNFINISHED = "unfinished"
    PENDING = "pending"
    OUTDATED = "outdated"
    DAMAGED = "damaged"


def state_of(job: Job, layout: WorkdirLayout, *, verify: bool = False) -> tuple[State, str]:
    """Return (state, why or by whom) of `job`; nothing is written.

    Args:
        job: To be looked at.
        layout: Of the workdir that it lies in.
        verify: Whether every byte of what is complete is read.
    """
    who, at_work = files.holder(layout.lock) or ("", "")
    try:
        record = read_record(job.folder)
        if who and at_work == os.path.relpath(job.folder, layout.root):
            return State.RUNNING, who
        if not job.has_record:
            return (State.COMPLETE if job.folder.is_dir() else State.PENDING), ""
        if record is None and os.path.lexists(job.folder):
            return State.DAMAGED, "its record is missing"
        if record is None:
            return State.PENDING, ""
    except UserError as error:
        return State.DAMAGED, str(error)
    try:
        difference, goes_on = difference_of(job, record)
    except UserError as error:
        # It is about a parent.
        return State.OUTDATED if record.complete else State.UNFINISHED, str(error)
    if goes_on:
        return State.PENDING, f"continues: {difference}"
    if difference:
        return State.OUTDATED, difference
    if not record.complete:
        return State.UNFINISHED, ""
    try:
        if _is_as_made(job.folder, record, verify=verify):
            return State.COMPLETE, ""
    except UserError as error:
        return State.DAMAGED, str(error)
    return State.PENDING, "no longer all there"


def _is_as_made(folder: Path, record: Record, *, verify: bool = False) -> bool:
    """Return whether all artifacts of a complete job are there.

    Args:
        folder: Of the job.
        record: The job's.
        verify: Whether every byte is read.

    Raises:
        UserError: An artifact is not what the job made.
    """
    there = {
        folder / name: digest
        for name, digest in record.artifacts.items()
        if (folder / name).exists()
    }
    for artifact, digest in there.items():
        files.read_manifest(artifact, verify=verify)
        if files.sha256_of_file(artifact / files.MANIFEST) != digest:
            raise UserError(
                f"{artifact / files.MANIFEST}: another artifact than the job made (its SHA-256 is "
                f"not the one in {record_of(folder)}); {_make_again(folder)}"
            )
    return len(there) == len(record.artifacts)


def _make_again(folder: Path) -> str:
    return (
        f"put it back from a copy, or delete {folder} and {record_of(folder).name} and run the "
        "step again"
    )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted key, value in `old`, value in `new`) where two JSON values differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old = dict(enumerate(old))
        new = dict(enumerate(new))
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield key, old, new
        return
    for part in sorted({*old, *new}):
        yield from _differences(old.get(part), new.get(part), f"{key}.{part}".lstrip("."))
