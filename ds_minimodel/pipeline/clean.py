"""What a workdir no longer needs: what `--rebuild` has moved aside, and snapshots that have been scored."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds_minimodel.common.files import clear_write_errors, lock
from ds_minimodel.pipeline.order import STEPS
from ds_minimodel.pipeline.status import size_of
from ds_minimodel.recipe.jobs import Job, State, forget, lock_of, state_of

if TYPE_CHECKING:
    from ds_minimodel.recipe.schema import Recipe

_ASIDE = re.compile(r"\.old-[0-9a-f]{8}\+*$")  # what jobs.move_aside_if_stale adds to a name


@dataclass(frozen=True)
class Removable:
    """Folders and files that may go, and why. job: whose artifacts they are, None for what is moved aside."""

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
                held.enter_context(lock(lock_of(self.job)))
                forget(self.job, [os.path.relpath(path, self.job.folder) for path in self.paths])
                return
            for path in self.paths:
                with clear_write_errors(path):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def removable(recipe: Recipe) -> list[Removable]:
    """All that may go from the recipe's workdir."""
    aside = [Removable([path], "moved aside by --rebuild") for path in _moved_aside(Path(recipe.workdir))]
    return aside + _scored_snapshots(recipe)


def _moved_aside(root: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(root):
        aside = [name for name in (*folders, *files) if _ASIDE.search(name)]
        found += [Path(folder, name) for name in aside]
        # Neither within what is aside nor within the artifacts of a job.
        folders[:] = [name for name in folders if name not in aside and not Path(folder, f"{name}.job.json").exists()]
    return sorted(found)


def _scored_snapshots(recipe: Recipe) -> list[Removable]:
    """The packs kept on the way of step 2, of each job of which all that they were kept for is done."""
    readers: dict[Path, list[Job]] = {}
    for job in STEPS["evaluate"].jobs(recipe) if recipe.finetune.tasks else ():
        for parent in job.parents:
            readers.setdefault(parent, []).append(job)
    found = []
    for job in STEPS["adapt"].jobs(recipe):
        paths = sorted((job.folder / "snapshots").glob("step-*"))
        jobs = [job, *readers.get(job.folder, [])]
        if paths and len(jobs) > 1 and all(state_of(each)[0] is State.COMPLETE for each in jobs):
            found.append(Removable(paths, "snapshots, all scored", job))
    return found
