"""Where artifacts lie, and whether one is complete, to be continued, or made from another recipe.

A job makes what lies in one folder. `job.json` there records what it is made from: the parts of the recipe
that matter to it and the identity of its parents. The same inputs mean the same artifact; so a complete job is
skipped, an unfinished one goes on, and one made from other inputs is refused, never overwritten.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ds_minimodel.errors import UserError
from ds_minimodel.files import MANIFEST, read_json, read_manifest, sha256_of_file, sha256_of_json, write_json

RECORD = "job.json"


@dataclass(frozen=True)
class Job:
    """One unit of work of a step.

    folder: where all of it lies. inputs: JSON values that decide the outcome. parents: folders of the jobs that
    it reads. make: makes the artifacts below `folder`; called on every rank where the step runs on several.
    """
    folder: Path
    inputs: dict
    parents: tuple
    make: Callable


class Layout:
    """Folders below the recipe's workdir."""

    def __init__(self, workdir):
        self.root = Path(workdir)

    def tokenizer(self, language):
        return self.root / "tokenizer" / language

    def tokens(self, language):
        return self.root / "tokens" / language

    def pretrain(self, body):
        return self.root / "pretrain" / body

    def build_mini(self):
        return self.root / "build-mini" / "minipost"

    def adapt(self, system, language):
        return self.root / "adapt" / system / language

    def finetune(self, body, task, seed):
        return self.root / "finetune" / body / task / f"seed-{seed}"

    def evaluate(self, system, task):
        return self.root / "evaluate" / system / task

    def report(self):
        return self.root / "report"


def _identity(folder):
    """Hash of all that a complete job made."""
    record = read_json(Path(folder) / RECORD)
    if not record["complete"]:
        raise UserError(f"{folder}: not finished; run that step first")
    return sha256_of_json(record)


def _inputs(job):
    parents = {}
    for folder in job.parents:
        if not (folder / RECORD).is_file():
            raise UserError(f"{folder}: missing; run the step that makes it, or `ds-minimodel run`")
        parents[str(folder)] = _identity(folder)
    return {**job.inputs, "parents": parents}


def begin(job, rebuild=False):
    """Record the start of `job`; False where it is complete and nothing is to be done.

    UserError where the folder was made from other inputs, unless `rebuild`: then it is moved aside.
    """
    inputs, path = _inputs(job), job.folder / RECORD
    if path.is_file():
        record = read_json(path)
        if record["inputs"] != inputs:
            if not rebuild:
                raise UserError(f"{job.folder}: made from another recipe or other data "
                                f"({_first_difference(record['inputs'], inputs)}); use another workdir, or give "
                                "--rebuild to move it aside and make it again")
            _move_aside(job.folder, record)
        elif record["complete"]:
            for artifact in record["artifacts"]:
                read_manifest(job.folder / artifact)
            return False
    write_json(path, {"inputs": inputs, "complete": False})
    return True


def finish(job):
    """Record that `job` is complete, with the hashes of the artifacts that it made."""
    manifests = sorted(job.folder.glob(f"**/{MANIFEST}"))
    artifacts = {str(path.parent.relative_to(job.folder)): sha256_of_file(path)
                 for path in manifests if "checkpoints" not in path.parts}
    write_json(job.folder / RECORD, {"inputs": _inputs(job), "complete": True, "artifacts": artifacts})
    shutil.rmtree(job.folder / "run" / "checkpoints", ignore_errors=True)


def fingerprint_of_text(files):
    """Names, sizes and a hash of the beginnings: enough to notice other data without reading a corpus."""
    facts = []
    for path in map(Path, files):
        with open(path, "rb") as file:
            head = hashlib.sha256(file.read(2**20)).hexdigest()
        facts.append([path.name, path.stat().st_size, head[:16]])
    return facts


def _first_difference(old, new, prefix=""):
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before != after:
            if isinstance(before, dict) and isinstance(after, dict):
                return _first_difference(before, after, f"{prefix}{key}.")
            return f"{prefix}{key}: {before} -> {after}"[:200]
    return "no visible difference"


def _move_aside(folder, record):
    target = folder.with_name(f"{folder.name}.old-{sha256_of_json(record)[:8]}")
    if target.exists():
        shutil.rmtree(target)
    folder.rename(target)
