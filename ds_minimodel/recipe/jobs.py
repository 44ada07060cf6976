"""Folders of artifacts, and whether one is complete, unfinished, or made from another recipe.

A job makes all that lies in one folder. A record beside the folder (`NAME.job.json`) says what it is made
from: the parts of the recipe that matter to it and the identity of its parents. The same inputs mean the same
artifacts; so a complete job is skipped, an unfinished one goes on, and one made from other inputs is refused,
never overwritten.
"""

import contextlib
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    MANIFEST,
    NameInside,
    Sha256,
    Stored,
    clear_write_errors,
    holder,
    lock,
    read_manifest,
    read_model,
    refuse_links,
    sha256_of_file,
    sha256_of_json,
    sweep,
    write_sealed_json,
)
from ds_minimodel.common.text_hashes import TextFacts, facts_of_text, sha256_of_text
from ds_minimodel.systems import System


@dataclass(frozen=True)
class Job:
    """One unit of work of a step.

    folder: where all of it lies. inputs: JSON values that decide the outcome. parents: folders of the jobs that
    it reads. make: makes the artifacts below `folder`; called with the ranks, on every one where the step runs on
    several. clean_up: removes what only an unfinished job needs. text: files of raw text that it reads whole.
    """

    folder: Path
    inputs: dict[str, Any]
    parents: Sequence[Path]
    make: Callable[[Any], None]
    clean_up: Callable[[], None] = lambda: None
    text: Sequence[Path] = ()


class Record(Stored):
    """Record of a job.

    artifacts: {folder: hash of its manifest}, of all that it made. logs: {file: hash} of what it wrote beside them
    and the report reads. text: of each file of Job.text. removed: artifacts that `clean` has removed, without which the
    job is complete.
    """

    inputs: dict[str, Any]
    complete: bool
    artifacts: dict[NameInside, Sha256] = {}
    logs: dict[NameInside, Sha256] = {}
    text: list[TextFacts] = []
    removed: list[NameInside] = []

    @model_validator(mode="after")
    def _something_was_made(self) -> Self:
        if self.complete and not self.artifacts:
            raise ValueError("artifacts: a complete job has made some")
        return self

    @property
    def identity(self) -> str:
        """What children know the job by. A job made again to the same artifacts keeps it, even with other logs."""
        made = {"artifacts": self.artifacts} if self.complete else {}
        return sha256_of_json({"inputs": self.inputs, "complete": self.complete, **made})


STEP_FOLDERS = "tokenizer", "tokens", "pretrain", "build-mini", "adapt", "finetune", "evaluate"  # of jobs
TOKENIZER, TOKENS, PRETRAIN, BUILD_MINI, ADAPT, FINETUNE, EVALUATE = STEP_FOLDERS


class WorkdirLayout:
    """Folders below the recipe's workdir."""

    def __init__(self, workdir: str | Path) -> None:
        self.root = Path(workdir)

    def tokenizer(self, language: str) -> Path:
        return self.root / TOKENIZER / language

    def tokens(self, language: str) -> Path:
        return self.root / TOKENS / language

    def pretrain(self, system: System) -> Path:
        """Folder of the body that the system adapts."""
        return self.root / PRETRAIN / system.body_name

    def build_mini(self, system: System) -> Path:
        return self.root / BUILD_MINI / system.name

    def adapt(self, system: System, language: str) -> Path:
        return self.root / ADAPT / system.name / language

    def finetune(self, system: System, task: str, seed: int) -> Path:
        """Folder of a task model of the body that the system adapts."""
        return self.root / FINETUNE / system.body_name / task / f"seed-{seed}"

    def evaluate(self, system: System, language: str, task: str, seed: int) -> Path:
        """Folder of a system's scores on a task in a language, with the task model of a seed."""
        return self.root / EVALUATE / system.name / language / task / f"seed-{seed}"

    def references(self, language: str, task: str) -> Path:
        """Folder of the scores of a task's references in a language."""
        return self.root / EVALUATE / "baselines" / language / task

    def report(self) -> Path:
        return self.root / "report"

    def joint_report(self) -> Path:
        return self.root / "report-joint"


LOGS = ("run/metrics.jsonl", "run/run.json")  # what training leaves beside its artifacts and the report reads


def record_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.job.json")


def lock_of(job: Job) -> Path:
    """File that is locked while a process works on `job`."""
    return job.folder.with_name(f"{job.folder.name}.lock")


@contextlib.contextmanager
def locked(job: Job, workdir: str | Path) -> Iterator[None]:
    """Hold the lock of `job`; UserError where another process does, or where a link would lead what it writes away."""
    refuse_links(Path(workdir), job.folder, *_beside(job.folder), *(folder.parent for folder in job.parents))
    with lock(lock_of(job)):
        yield


def _beside(folder: Path) -> list[Path]:
    """What lies beside a job's folder under its name: record, lock, tables of blocks, what killed processes left."""
    return [*folder.parent.glob(f"{glob.escape(folder.name)}.*")]


def read_record(folder: Path) -> Record | None:
    """The record of the job that lies in `folder`, None where it was never begun; UserError where it is damaged."""
    path = record_of(folder)
    if not os.path.lexists(path):
        return None
    return read_model(path, Record, f"put it back from a copy, or delete it and {folder} and run the step again")


def _is_as_made(folder: Path, record: Record, to_be_read: bool = False, verify: bool = False) -> bool:
    """Whether all artifacts of a complete job are there; UserError where one is not what the job made.

    to_be_read: and those, too, that `clean` has removed. Of those something may be left, where it was killed.
    verify: read every byte, of the logs too.
    """
    for name in record.logs if verify else ():
        log_of(folder, name)
    all_there = True
    for name, digest in record.artifacts.items():
        artifact = folder / name
        for place in (folder, artifact):
            if os.path.lexists(place) and not place.is_dir():
                raise UserError(f"{place}: not a folder, but in the place of one; {_make_again(folder)}")
        if name in record.removed and not to_be_read:
            continue
        if not artifact.exists():
            if name in record.removed:
                raise UserError(
                    f"{artifact}: removed by `ds-minimodel clean`; to have it again, delete {record_of(folder)} and "
                    f"{folder} and run the step again"
                )
            all_there = False
        else:
            read_manifest(artifact, verify)
            if sha256_of_file(artifact / MANIFEST) != digest:
                raise UserError(
                    f"{artifact / MANIFEST}: another artifact than the job made (its SHA-256 is not the one in "
                    f"{record_of(folder)}); {_make_again(folder)}"
                )
    return all_there


def _make_again(folder: Path) -> str:
    return f"put it back from a copy, or delete {folder} and run the step again"


def _inputs(job: Job, to_be_read: bool = False) -> dict[str, Any]:
    """What `job` would be made from now, as a record holds it. to_be_read: its parents must be all there.

    UserError where a parent is not finished, or is not what it was when it was.
    """
    parents = {}
    for folder in job.parents:
        record = read_record(folder)
        if record is None or not record.complete:
            raise UserError(f"{folder}: missing or not finished; run the step that makes it, or `ds-minimodel run`")
        if not _is_as_made(folder, record, to_be_read) and to_be_read:  # children that are complete do without
            raise UserError(f"{folder}: no longer all there; run the step that makes it, or `ds-minimodel run`")
        parents[os.path.relpath(folder, job.folder)] = record.identity  # a workdir may be moved
    return json.loads(json.dumps({**job.inputs, "parents": parents}))  # as a record holds them: no tuples


def inputs_hash(folder: Path) -> str:
    """Hash of what the job that lies in `folder` is made from; a checkpoint holds it."""
    record = read_record(folder)
    assert record is not None
    return sha256_of_json(record.inputs)


def is_complete(job: Job) -> bool:
    """Whether `job` has nothing left to do; UserError where it was made from other inputs or is damaged."""
    record = read_record(job.folder)
    if record is None:
        return False
    difference = _difference(job, record, _inputs(job))
    if difference:
        raise UserError(
            f"{job.folder}: made from another recipe or other data ({difference}); use another workdir, or give "
            "--rebuild to move it aside and make it again"
        )
    return record.complete and _is_as_made(job.folder, record)


class State(Enum):
    """What can be said of a job without doing anything for it."""

    COMPLETE = "complete"
    RUNNING = "running"
    UNFINISHED = "unfinished"
    PENDING = "pending"
    STALE = "stale"
    DAMAGED = "damaged"


def state_of(job: Job, verify: bool = False) -> tuple[State, str]:
    """(state, why or by whom) of `job`; reads, with `verify` every byte of what is complete, and writes nothing."""
    at_work = holder(lock_of(job))
    try:
        record = read_record(job.folder)
        if at_work:
            return State.RUNNING, at_work
        if record is None:
            has_lost_its_record = os.path.lexists(job.folder)
            return (State.DAMAGED, "its record is missing") if has_lost_its_record else (State.PENDING, "")
    except UserError as error:
        return State.DAMAGED, str(error)
    try:
        difference = _difference(job, record, _inputs(job))
    except UserError as error:  # of a parent
        return State.STALE if record.complete else State.UNFINISHED, str(error)
    if difference:
        return State.STALE, difference
    if not record.complete:
        return State.UNFINISHED, ""
    try:
        is_as_made = _is_as_made(job.folder, record, verify=verify)
        return (State.COMPLETE, "") if is_as_made else (State.PENDING, "no longer all there")
    except UserError as error:
        return State.DAMAGED, str(error)


def forget(job: Job, artifacts: Sequence[str]) -> None:
    """Remove artifacts of a complete `job`, which stays complete without them; its lock is held."""
    record = read_record(job.folder)
    assert record is not None and record.complete and record.artifacts.keys() >= set(artifacts)
    _write(job, record.model_copy(update={"removed": sorted({*record.removed, *artifacts})}))
    for path in (job.folder / name for name in artifacts):
        with clear_write_errors(path):
            shutil.rmtree(path)


def refuse_if_stale(job: Job) -> None:
    """UserError where is_complete would raise one, as far as the parents of `job` tell already."""
    parents = map(read_record, job.parents)
    if all(record is not None and record.complete for record in parents):
        is_complete(job)


def begin(job: Job) -> bool:
    """Record the start of `job`; False where it is complete and nothing is to be done."""
    path, text = record_of(job.folder), [facts_of_text(file) for file in job.text]
    if is_complete(job):
        record = read_record(job.folder)
        if record and [file.unread for file in record.text] != text:  # of another time, read anew
            _write(job, record.model_copy(update={"text": _hashed(job, text)}))
        job.clean_up()  # of a kill within `finish`
        return False
    if os.path.lexists(job.folder) and not path.is_file():
        raise UserError(
            f"{job.folder}: its record {path.name} is missing, so what it was made "
            "from is not known; delete or rename the folder"
        )
    _write(job, Record(inputs=_inputs(job, to_be_read=True), complete=False, text=text))
    return True


def withdraw(job: Job) -> None:
    """Forget the start of a job that was refused, where it has made nothing: its record and empty folders."""
    if not any(path.is_file() for path in job.folder.rglob("*")):
        shutil.rmtree(job.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            record_of(job.folder).unlink()


def sweep_up(job: Job) -> None:
    """Remove the files that killed processes were writing for `job`, whose lock is held."""
    beside = _beside(job.folder)
    of_record = f"{record_of(job.folder).name}."
    sweep([*job.folder.rglob("*"), *(path for path in beside if path.name.startswith(of_record))])
    sweep(beside, patience=3600)  # such as tables of blocks, which other jobs make


def finish(job: Job) -> None:
    """Record that `job` is complete, with the hashes of the artifacts that it made, and clean up."""
    folders = [path.parent.relative_to(job.folder) for path in sorted(job.folder.glob(f"**/{MANIFEST}"))]
    artifacts = {
        str(folder): sha256_of_file(job.folder / folder / MANIFEST)
        for folder in folders
        if "checkpoints" not in folder.parts
    }
    logs = {name: sha256_of_file(job.folder / name) for name in LOGS if (job.folder / name).is_file()}
    record = read_record(job.folder)  # what it was begun with: since then a parent may have been made again
    assert record is not None
    text = _hashed(job, record.text)
    _write(job, Record(inputs=record.inputs, complete=True, artifacts=artifacts, logs=logs, text=text))
    job.clean_up()


def _write(job: Job, record: Record) -> None:
    write_sealed_json(record_of(job.folder), record.model_dump(exclude_defaults=True))


def _hashed(job: Job, text: Sequence[TextFacts]) -> list[TextFacts]:
    """The facts of the job's text with its hashes; UserError where a file is no longer the one of `text`."""
    for path, facts in zip(job.text, text, strict=True):
        if facts_of_text(path) != facts.unread:
            raise UserError(f"{path}: changed while {job.folder} was made from it; run again")
    return [
        facts.model_copy(update={"sha256": sha256_of_text(path)}) for path, facts in zip(job.text, text, strict=True)
    ]


def move_aside_if_stale(job: Job) -> None:
    """Rename what was made from other inputs than `job` has now to NAME.old-HASH; nothing is lost."""
    path, record = record_of(job.folder), read_record(job.folder)
    if record is not None and _difference(job, record, _inputs(job)):
        suffix = f".old-{record.identity[:8]}"
        while job.folder.with_name(job.folder.name + suffix).exists():  # the same was moved aside before
            suffix += "+"
        if job.folder.exists():  # before its record: killed in between, it is not taken for an unfinished job
            job.folder.rename(job.folder.with_name(job.folder.name + suffix))
        path.rename(path.with_name(path.name + suffix))


def log_of(folder: Path, name: str) -> Path:
    """Path of a log that the job in `folder` has left; UserError where it is not the one that it left."""
    record, path = read_record(folder), folder / name
    digest = record.logs.get(name) if record else None
    is_there = os.path.lexists(path) or (os.path.lexists(path.parent) and not path.parent.is_dir())
    if is_there and (not path.is_file() or sha256_of_file(path) != digest):
        raise UserError(
            f"{path}: changed since it was written (its SHA-256 is not the one in {record_of(folder)}); put it back "
            "from a copy, or delete it: nothing but the report reads it"
        )
    return path


def fingerprint_of_text(text: Iterable[object]) -> list[list[Any]]:
    """Of files names, sizes and hashes of the first and last MiB: what tells corpora apart without reading them whole.

    Of what is no file, such as a data set of the Hub, its name.
    """
    facts: list[list[Any]] = []
    for path in text:
        if not isinstance(path, Path):
            facts.append([str(path)])
            continue
        size = path.stat().st_size
        with open(path, "rb") as file:
            ends = hashlib.sha256(file.read(2**20))
            file.seek(max(0, size - 2**20))
            ends.update(file.read())
        facts.append([path.name, size, ends.hexdigest()[:16]])
    return facts


def _difference(job: Job, record: Record, inputs: dict[str, Any]) -> str | None:
    """What `job` would be made from now that `record` was not, if anything."""
    if record.inputs != inputs:
        return _first_difference(record.inputs, inputs)
    for path, then in zip(job.text, record.text, strict=False):
        if then.sha256 and facts_of_text(path) != then.unread and sha256_of_text(path) != then.sha256:
            return f"the text {path} has another SHA-256"
    return None


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before != after:
            if isinstance(before, dict) and isinstance(after, dict):
                return _first_difference(before, after, f"{prefix}{key}.")
            return f"{prefix}{key}: {before} -> {after}"[:200]
    return "no visible difference"
