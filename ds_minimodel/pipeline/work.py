"""Changes of a job's record: it is begun, finished, withdrawn, moved aside."""

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

# Names that atomic_write and atomic_folder give to what they are writing.
_HALF_WRITTEN = re.compile(r".+\.tmp(\d*|\.lock)")


def note_work(layout: WorkdirLayout, job: Job) -> None:
    """Write into the workdir's lock file, which this process holds, which job it works on."""
    note_holder(layout.lock, os.path.relpath(job.folder, layout.root))


def begin(job: Job) -> bool:
    """Record the start of `job`, and return whether there is anything to be done.

    Raises:
        UserError: The job was made from other inputs, or its record or parents are missing.
    """
    complete = is_complete(job)
    if os.path.lexists(job.folder) and not record_of(job.folder).is_file():
        raise UserError(
            f"{job.folder}: its record {record_of(job.folder).name} is missing, so what it was "
            "made from is not known; delete or rename the folder"
        )
    record = read_record(job.folder)
    former: list[str] = []
    inputs, hashes = current_inputs(job, record, to_be_read=not complete)
    if record is not None and complete:
        # A process may have been killed within `finish`.
        job.clean_up()
        if hashes != record.hashes:
            _write(job, record.model_copy(update={"hashes": hashes}))
        return False
    if record is not None:
        former = record.former
        # is_complete has refused all other inputs but those from which the job can go on.
        if record.inputs != inputs:
            job.go_back(record.inputs)
            if record.complete:
                former = [*former, record.identity]
    _write(job, Record(inputs=inputs, complete=False, former=former, hashes=hashes))
    return True


def withdraw(layout: WorkdirLayout, job: Job) -> None:
    """Remove the record and empty folders of a job that was refused and has made nothing."""
    if any(path.is_file() for path in job.folder.rglob("*")):
        return
    shutil.rmtree(job.folder, ignore_errors=True)
    record_of(job.folder).unlink(missing_ok=True)
    # The first folder that is not empty ends it.
    with contextlib.suppress(OSError):
        for folder in job.folder.relative_to(layout.root).parents[:-1]:
            (layout.root / folder).rmdir()


def finish(job: Job) -> None:
    """Record that `job` is complete, with the hashes of its artifacts, and clean up."""
    folders = [
        path.parent.relative_to(job.folder) for path in sorted(job.folder.glob(f"**/{MANIFEST}"))
    ]
    artifacts = {
        str(folder): sha256_of_file(job.folder / folder / MANIFEST)
        for folder in folders
        if "checkpoints" not in folder.parts
    }
    # The inputs stay those that it was begun with: a parent may have been made again since then.
    record = read_record(job.folder)
    assert record is not None
    _write(job, record.model_copy(update={"complete": True, "artifacts": artifacts}))
    job.clean_up()


def move_aside_if_stale(job: Job) -> None:
    """Rename what was made from other inputs than `job` has now to NAME.old-HASH."""
    record = read_record(job.folder)
    if record is None:
        return
    difference, goes_on = difference_of(job, record)
    if not difference or goes_on:
        return
    suffix = f".old-{record.identity[:8]}"
    # The same may have been moved aside before.
    while job.folder.with_name(job.folder.name + suffix).exists():
        suffix += "+"
    # The folder goes before its record: if the process is killed in between, the folder is not
    # taken for an unfinished job.
    if job.folder.exists():
        job.folder.rename(job.folder.with_name(job.folder.name + suffix))
    path = record_of(job.folder)
    path.rename(path.with_name(path.name + suffix))


def sweep_up(layout: WorkdirLayout) -> None:
    """Remove the files that killed processes were writing below the workdir, whose lock is held."""
    for name in STEP_FOLDERS:
        for path in (layout.root / name).rglob("*.tmp*"):
            if _HALF_WRITTEN.fullmatch(path.name) and path.is_file():
                path.unlink()


def _write(job: Job, record: Record) -> None:
    write_json(record_of(job.folder), record.model_dump(exclude_defaults=True))
