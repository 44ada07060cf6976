"""What a job's record goes through while the job is done: begun, finished, withdrawn, moved
aside.
"""

import contextlib
import os
import re
import shutil

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import MANIFEST, note_holder, sha256_of_file, write_json
from ds_minimodel.pipeline.layout import STEP_FOLDERS, WorkdirLayout
from ds_minimodel.pipeline.records import (
    Job,
    Record,
    current_inputs,
    difference_of,
    is_complete,
    read_record,
    record_of,
)

_HALF_WRITTEN = re.compile(r".+\.tmp(\d*|\.lock)")  # as atomic_write and atomic_folder call it


def note_work(layout: WorkdirLayout, job: Job) -> None:
    """Write into the workdir's lock file, which this process holds, which job it works on."""
    note_holder(layout.lock, os.path.relpath(job.folder, layout.root))


def begin(job: Job) -> bool:
    """Record the start of `job`; False where it is complete and nothing is to be done."""
    complete = is_complete(job)
    if os.path.lexists(job.folder) and not record_of(job.folder).is_file():
        raise UserError(
            f"{job.folder}: its record {record_of(job.folder).name} is missing, so what it was "
            "made "
            "from is not known; delete or rename the folder"
        )
    record = read_record(job.folder)
    former = list[str]()
    inputs, hashes = current_inputs(job, record, to_be_read=not complete)
    if record is not None and complete:
        job.clean_up()  # of a kill within `finish`
        if hashes != record.hashes:
            _write(job, record.model_copy(update={"hashes": hashes}))
        return False
    if record is not None:
        former = record.former
        if record.inputs != inputs:  # it goes on: is_complete refuses all else
            job.go_back(record.inputs)
            former = former + [record.identity] * record.complete
    _write(job, Record(inputs=inputs, complete=False, former=former, hashes=hashes))
    return True


def withdraw(layout: WorkdirLayout, job: Job) -> None:
    """Forget the start of a job that was refused, where it has made nothing: its record and empty
    folders.
    """
    if not any(path.is_file() for path in job.folder.rglob("*")):
        shutil.rmtree(job.folder, ignore_errors=True)
        record_of(job.folder).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the first that is not empty ends it
            for folder in job.folder.relative_to(layout.root).parents[:-1]:
                (layout.root / folder).rmdir()


def finish(job: Job) -> None:
    """Record that `job` is complete, with the hashes of the artifacts that it made, and clean
    up.
    """
    folders = [
        path.parent.relative_to(job.folder) for path in sorted(job.folder.glob(f"**/{MANIFEST}"))
    ]
    artifacts = {
        str(folder): sha256_of_file(job.folder / folder / MANIFEST)
        for folder in folders
        if "checkpoints" not in folder.parts
    }
    record = read_record(
        job.folder
    )  # what it was begun with: since then a parent may have been made again
    assert record is not None
    _write(job, record.model_copy(update={"complete": True, "artifacts": artifacts}))
    job.clean_up()


def move_aside_if_stale(job: Job) -> None:
    """Rename what was made from other inputs than `job` has now to NAME.old-HASH; nothing is
    lost.
    """
    path = record_of(job.folder)
    record = read_record(job.folder)
    difference, goes_on = difference_of(job, record) if record is not None else ("", False)
    if record is not None and difference and not goes_on:
        suffix = f".old-{record.identity[:8]}"
        while job.folder.with_name(
            job.folder.name + suffix
        ).exists():  # the same was moved aside before
            suffix += "+"
        if (
            job.folder.exists()
        ):  # before its record: killed in between, it is not taken for an unfinished job
            job.folder.rename(job.folder.with_name(job.folder.name + suffix))
        path.rename(path.with_name(path.name + suffix))


def sweep_up(layout: WorkdirLayout) -> None:
    """Remove the files that killed processes were writing below the workdir, whose lock is held."""
    for name in STEP_FOLDERS:
        for path in (layout.root / name).rglob("*.tmp*"):
            if _HALF_WRITTEN.fullmatch(path.name) and path.is_file():
                path.unlink()


def _write(job: Job, record: Record) -> None:
    write_json(record_of(job.folder), record.model_dump(exclude_defaults=True))
