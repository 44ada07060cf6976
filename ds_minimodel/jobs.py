"""Where artifacts lie, and whether one is complete, to be continued, or made from another recipe.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    MANIFEST,
    read_json,
    read_manifest,
    sha256_of_file,
    sha256_of_json,
    sweep,
    write_json,
)
from ds_minimodel.systems import System


@dataclass(frozen=True)
class Job:
    """One unit of work of a step.

    folder: where all of it lies. inputs: JSON values that decide the outcome. parents: folders of the jobs that
    it reads. make: makes the artifacts below `folder`; called with the ranks, on every one where the step runs on
    several. clean_up: removes what only an unfinished job needs.
    """

    folder: Path
    inputs: dict[str, Any]
    parents: Sequence[Path]
    make: Callable[[Any], None]
    clean_up: Callable[[], None] = lambda: None


class Layout:
    """Folders below the recipe's workdir."""

    def __init__(self, workdir: str | Path) -> None:
        self.root = Path(workdir)

    def tokenizer(self, language: str) -> Path:
        return self.root / "tokenizer" / language

    def tokens(self, language: str) -> Path:
        return self.root / "tokens" / language

    def pretrain(self, system: System) -> Path:
        """Of the body that the system adapts."""
        return self.root / "pretrain" / system.body_name

    def build_mini(self, system: System) -> Path:
        return self.root / "build-mini" / system.name

    def adapt(self, system: System, language: str) -> Path:
        return self.root / "adapt" / system.name / language

    def finetune(self, system: System, task: str, seed: int) -> Path:
        """Of the body that the system adapts."""
        return self.root / "finetune" / system.body_name / task / f"seed-{seed}"

    def evaluate(self, system: System, task: str) -> Path:
        return self.root / "evaluate" / system.name / task

    def baselines(self, task: str) -> Path:
        return self.root / "evaluate" / "baselines" / task

    def report(self) -> Path:
        return self.root / "report"

    def joint_report(self) -> Path:
        return self.root / "report-joint"


def record_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.job.json")


def lock_of(job: Job) -> Path:
    """File that is locked while a process works on `job`."""
    return job.folder.with_name(f"{job.folder.name}.lock")


def _inputs(job: Job) -> dict[str, Any]:
    parents = {}
    for folder in job.parents:
        record = read_json(record_of(folder)) if record_of(folder).is_file() else {"complete": False}
        if not record["complete"]:
            raise UserError(f"{folder}: missing or not finished; run the step that makes it, or `ds-minimodel run`")
        parents[os.path.relpath(folder, job.folder)] = sha256_of_json(record)  # a workdir may be moved
    return json.loads(json.dumps({**job.inputs, "parents": parents}))  # as a record holds them: no tuples


def inputs_hash(folder: Path) -> str:
    """Hash of what the job that lies in `folder` is made from; a checkpoint holds it."""
    return sha256_of_json(read_json(record_of(folder))["inputs"])


def is_complete(job: Job) -> bool:
    """Whether `job` has nothing left to do; UserError where it was made from other inputs or is damaged."""
    path = record_of(job.folder)
    if not path.is_file():
        return False
    record, inputs = read_json(path), _inputs(job)
    if record["inputs"] != inputs:
        raise UserError(
            f"{job.folder}: made from another recipe or other data "
            f"({_first_difference(record['inputs'], inputs)}); use another workdir, or give --rebuild "
            "to move it aside and make it again"
        )
    artifacts = [job.folder / name for name in record.get("artifacts", {})]
    if not record["complete"] or not all(artifact.is_dir() for artifact in artifacts):
        return False
    for artifact in artifacts:
        read_manifest(artifact)
    return True


def begin(job: Job) -> bool:
    """Record the start of `job`; False where it is complete and nothing is to be done."""
    if is_complete(job):
        job.clean_up()  # of a kill within `finish`
        return False
    if job.folder.exists() and not record_of(job.folder).is_file():
        raise UserError(
            f"{job.folder}: its record {record_of(job.folder).name} is missing, so nobody knows what it "
            "was made from; delete or rename the folder"
        )
    write_json(record_of(job.folder), {"inputs": _inputs(job), "complete": False})
    return True


def withdraw(job: Job) -> None:
    """Forget the start of a job that was refused, where it has made nothing: its record and empty folders."""
    if not any(path.is_file() for path in job.folder.rglob("*")):
        shutil.rmtree(job.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            record_of(job.folder).unlink()


def sweep_up(job: Job) -> None:
    """Remove the files that killed processes were writing for `job`, whose lock is held."""
    beside = [*job.folder.parent.glob(f"{glob.escape(job.folder.name)}.*")]
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
    # What it was begun with: since then a parent may have been made again.
    inputs = read_json(record_of(job.folder))["inputs"]
    write_json(record_of(job.folder), {"inputs": inputs, "complete": True, "artifacts": artifacts})
    job.clean_up()


def move_aside_if_stale(job: Job) -> None:
    """Rename what was made from other inputs than `job` has now to NAME.old-HASH; nothing is lost."""
    path = record_of(job.folder)
    if not path.is_file():
        return
    record = read_json(path)
    if record["inputs"] != _inputs(job):
        suffix = f".old-{sha256_of_json(record)[:8]}"
        while job.folder.with_name(job.folder.name + suffix).exists():  # the same was moved aside before
            suffix += "+"
        if job.folder.exists():  # before its record: killed in between, it is not taken for an unfinished job
            job.folder.rename(job.folder.with_name(job.folder.name + suffix))
        path.rename(path.with_name(path.name + suffix))


def fingerprint_of_text(files: Iterable[str | Path]) -> list[list[Any]]:
    """Names, sizes and hashes of the first and last MiB: what tells corpora apart without reading them whole."""
    facts = []
    for path in map(Path, files):
        size = path.stat().st_size
        with open(path, "rb") as file:
            ends = hashlib.sha256(file.read(2**20))
            file.seek(max(0, size - 2**20))
            ends.update(file.read())
        facts.append([path.name, size, ends.hexdigest()[:16]])
    return facts


def _first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before != after:
            if isinstance(before, dict) and isinstance(after, dict):
                return _first_difference(before, after, f"{prefix}{key}.")
            return f"{prefix}{key}: {before} -> {after}"[:200]
    return "no visible difference"
