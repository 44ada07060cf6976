"""What a workdir no longer needs: what `--rebuild` has moved aside, and snapshots that have been scored."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import clear_write_errors, holder, read_model, refuse_links
from ds_minimodel.pipeline.order import STEPS
from ds_minimodel.pipeline.status import size_of
from ds_minimodel.recipe.jobs import STEP_FOLDERS, Job, Record, State, forget, locked, read_record, record_of, state_of

if TYPE_CHECKING:
    from ds_minimodel.recipe.schema import Recipe

_ASIDE = re.compile(r"(.+)\.old-([0-9a-f]{8})\+*")  # a name as jobs.move_aside_if_stale makes it


@dataclass(frozen=True)
class Removable:
    """Folders and files that may go, and why. job: whose artifacts they are, None for what is moved aside."""

    workdir: Path
    paths: Sequence[Path]
    why: str
    job: Job | None = None

    @property
    def bytes(self) -> int:
        return size_of(*self.paths)

    def remove(self) -> None:
        """Remove them; UserError where a process is at work on the job, or the disk does not let go."""
        with contextlib.ExitStack() as held:
            if self.job is not None:
                held.enter_context(locked(self.job, self.workdir))
                forget(self.job, [os.path.relpath(path, self.job.folder) for path in self.paths])
                return
            refuse_links(self.workdir, *self.paths)
            for path in self.paths:
                with clear_write_errors(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def removable(recipe: Recipe) -> list[Removable]:
    """All that may go from the recipe's workdir."""
    root = Path(recipe.workdir)
    aside = [Removable(root, [path], "moved aside by --rebuild") for path in _moved_aside(root)]
    return aside + _scored_snapshots(recipe)


def _moved_aside(root: Path) -> list[Path]:
    """Folders and records of jobs below `root` that the hash in their names belongs to."""
    found = []
    for folder, folders, files in itertools.chain.from_iterable(os.walk(root / name) for name in STEP_FOLDERS):
        aside = [name for name in (*folders, *files) if _is_moved_aside(Path(folder, name))]
        found += [Path(folder, name) for name in aside]
        # Neither within what is aside nor within the artifacts of a job.
        folders[:] = [name for name in folders if name not in aside and not Path(folder, f"{name}.job.json").exists()]
    return sorted(found)


def _is_moved_aside(path: Path) -> bool:
    """Whether `path` is a moved record, or a folder beside its own: a killed process may not have moved that yet."""
    match = _ASIDE.fullmatch(path.name)
    if not match:
        return False
    name, digest = match.groups()
    record = path if name.endswith(".job.json") else path.with_name(path.name.replace(name, f"{name}.job.json", 1))
    if record != path and not record.exists():
        record = record_of(path.with_name(name))
    try:
        return read_model(record, Record, "").identity.startswith(digest)
    except UserError:
        return False


def _scored_snapshots(recipe: Recipe) -> list[Removable]:
    """The packs kept on the way of step 2, of each job of which all that they were kept for is done."""
    readers: dict[Path, list[Job]] = {}
    for job in STEPS["evaluate"].jobs(recipe) if recipe.finetune.tasks else ():
        for parent in job.parents:
            readers.setdefault(parent, []).append(job)
    found = []
    for job in STEPS["adapt"].jobs(recipe):
        of_job = readers.get(job.folder, [])
        record = read_record(job.folder) if state_of(job)[0] is State.COMPLETE else None
        names = sorted(name for name in record.artifacts if name.startswith("snapshots/")) if record else []
        paths = [job.folder / name for name in names if (job.folder / name).is_dir()]
        if (
            paths
            and of_job
            and all(state_of(one, verify=True)[0] is State.COMPLETE for one in of_job)
            and not _is_being_scored(job)
        ):
            found.append(Removable(Path(recipe.workdir), paths, "snapshots, all scored", job))
    return found


def _is_being_scored(job: Job) -> bool:
    """Whether a process scores the packs' system, perhaps by a recipe with other tasks."""
    scores = Path(job.folder.parents[2], "evaluate", job.folder.parent.name)
    return any(holder(path) for path in scores.rglob("*.lock"))
