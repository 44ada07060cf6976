"""The folder of a run's checkpoints: which are complete, undamaged, to be kept.

step-00001000/          DeepSpeed's files and manifest.json with their sizes and hashes and its own
step-00002000.partial/  being written, or cut short by a kill
latest                  name of the newest complete one, as DeepSpeed's load_checkpoint reads it
"""

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError

LATEST = "latest"
PARTIAL = ".partial"
# Copies that a user has put beside complete ones have other names.
_COMPLETE = re.compile(r"step-\d{1,15}")


class CheckpointManifest(files.Manifest):
    """Manifest of a checkpoint; what else a run must agree in, checkpoints.py compares.

    Attributes:
        step: number of steps done.
        loss_scale: fp16's, None in other precisions.
        manifest_sha256: hash of all else in the manifest.
    """

    step: files.Count
    loss_scale: dict[str, int | float] | None
    manifest_sha256: files.Sha256

    noun = "a checkpoint"
    kinds = ("checkpoint",)


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"step-{step:08}"


def step_of(name: str) -> int:
    """Return the step of a checkpoint by its folder's name."""
    return int(name.removeprefix("step-"))


def newest_first(folder: Path) -> list[str]:
    """Return the names of the complete checkpoints, damaged or not.

    What `latest` names is among them, though it be gone.
    """
    names = {path.name for path in folder.glob("step-*")}
    latest = folder / LATEST
    if latest.is_file():
        names.add(latest.read_text(encoding="utf-8", errors="replace").strip())
    return sorted(filter(_COMPLETE.fullmatch, names), key=step_of, reverse=True)


def damage(checkpoint: Path, share: int = 0, shares: int = 1) -> str | None:
    """Return the damage to a checkpoint, in one line, or None.

    Args:
        checkpoint: its folder.
        share: index of the first of its files that is read.
        shares: of its files every so many-th is read.
    """
    if not checkpoint.is_dir():
        return f"{checkpoint}: missing"
    try:
        manifest = files.read_artifact(checkpoint, CheckpointManifest)
        values = files.read_json(checkpoint / files.MANIFEST)
        if values.pop("manifest_sha256") != files.sha256_of_json(values):
            return f"{checkpoint / files.MANIFEST}: its SHA-256 is not the one that it holds"
        for name, facts in sorted(manifest.files.items())[share::shares]:
            if files.sha256_of_file(checkpoint / name) != facts.sha256:
                return f"{checkpoint / name}: its SHA-256 is not the one in {files.MANIFEST}"
    except UserError as error:
        return str(error)
    except OSError as error:
        return f"{checkpoint}: cannot be read ({error})"
    return None


def start_partial(folder: Path, step: int) -> None:
    """Make an empty folder for the checkpoint of `step`; remove what killed saves have left."""
    with files.clear_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_partials(folder)
        (folder / (checkpoint_name(step) + PARTIAL)).mkdir()


def write_hashed(path: Path, state: Any) -> dict[str, int | str]:
    """Save with fsync; return {"bytes", "sha256"} of what is in the file."""
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": files.sha256_of_file(path)}


def complete_partial(
    folder: Path, step: int, of_files: dict[str, dict], facts: dict[str, Any]
) -> None:
    """Make the partial checkpoint of `step` the newest one.

    Args:
        folder: of the run's checkpoints.
        step: number of steps done.
        of_files: {name: {"bytes", "sha256"}} as written by all ranks.
        facts: further keys of the manifest.

    Raises:
        UserError: a file that a rank has written is not here.
    """
    partial = folder / (checkpoint_name(step) + PARTIAL)
    for name, written in of_files.items():
        path = partial / name
        if not path.is_file() or path.stat().st_size != written["bytes"]:
            raise UserError(
                f"{path}: written by another rank, but not found here; all hosts must "
                "share the disk with the workdir"
            )
    manifest = {**facts, "kind": "checkpoint", "step": step, "files": of_files}
    manifest["manifest_sha256"] = files.sha256_of_json(manifest)
    files.write_json(partial / files.MANIFEST, manifest)
    files.sync(partial)
    complete = folder / checkpoint_name(step)
    # One that is here was damaged, and passed over.
    if complete.exists():
        shutil.rmtree(complete)
    partial.rename(complete)
    files.sync(folder)
    _point_to(folder, complete.name)


def _point_to(folder: Path, name: str) -> None:
    with files.atomic_write(folder / LATEST, "w") as file:
        file.write(name)


def drop_old(folder: Path, step: int, keep_last: int, stable_steps: int) -> None:
    """Remove old checkpoints, and those after `step`, which are damaged.

    Args:
        folder: of the run's checkpoints.
        step: that of the newest good one.
        keep_last: so many of the newest stay.
        stable_steps: the checkpoint of this step stays, too.
    """
    names = newest_first(folder)
    kept = [name for name in names if step_of(name) <= step][:keep_last]
    for name in names:
        if name not in kept and step_of(name) != stable_steps:
            _remove(folder / name)


def drop_all(folder: Path, stable_steps: int = 0) -> None:
    """Remove the checkpoints of a finished run.

    Args:
        folder: of the checkpoints.
        stable_steps: the newest up to this step stays, from which a longer run goes on.
    """
    _remove_partials(folder)
    names = newest_first(folder)
    stable = [name for name in names if step_of(name) <= stable_steps and (folder / name).is_dir()]
    kept = stable[0] if stable else None
    if kept:
        _point_to(folder, kept)
    for name in names:
        if name != kept:
            _remove(folder / name)
    if folder.is_dir() and not kept:
        (folder / LATEST).unlink(missing_ok=True)
        # It may hold what a user has put there.
        with contextlib.suppress(OSError):
            folder.rmdir()


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint."""
    # It is renamed first: a kill leaves no half of one under a complete one's name.
    partial = checkpoint.with_name(checkpoint.name + PARTIAL)
    if checkpoint.exists():
        checkpoint.rename(partial)
        shutil.rmtree(partial)


def _remove_partials(folder: Path) -> None:
    for path in folder.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(path)
