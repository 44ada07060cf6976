"""DeepSpeed checkpoints that are complete or absent.

A checkpoint is written under another name, listed with sizes and hashes in a manifest, fsynced and renamed;
`latest` moves last. Frozen weights are not in it: they are in the artifacts that the step reads.
Everything else that a run needs to go on is the number of steps done, because data and dropout are functions
of it.
"""

import logging
import shutil
from pathlib import Path

from ds_minimodel.errors import UserError
from ds_minimodel.files import (atomic_write, clear_write_errors, read_manifest, sync_file, sync_folder,
                                write_manifest)

log = logging.getLogger(__name__)


def save(engine, folder, step, world, facts, keep_last):
    """Save the state after `step` steps below `folder`; the newest `keep_last` checkpoints are kept.

    `facts` (world size, ZeRO stage …) bind the checkpoint to the run that it belongs to.
    """
    folder, name = Path(folder), f"step-{step:08}"
    partial = folder / f"{name}.partial"
    with clear_write_errors(folder):
        if world.is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        world.barrier()
        # Every rank writes its own files; save_checkpoint ends with a barrier of all ranks.
        engine.save_checkpoint(folder, tag=partial.name, client_state={"step": step}, save_latest=False,
                               exclude_frozen_parameters=True)
        if world.is_main:
            for file in partial.iterdir():
                sync_file(file)
            write_manifest(partial, kind="checkpoint", step=step, **facts)
            sync_folder(partial)
            shutil.rmtree(folder / name, ignore_errors=True)
            partial.rename(folder / name)
            sync_folder(folder)
            with atomic_write(folder / "latest", "w") as file:
                file.write(name)
            # What is newer than this was damaged and passed over, what is partial was cut short by a kill.
            complete = [path for path in _complete(folder) if path.name <= name]
            for old in set(folder.glob("step-*")) - set(complete[-keep_last:]):
                shutil.rmtree(old)
    world.barrier()


def load_newest(engine, folder, world, facts):
    """Load the newest undamaged checkpoint below `folder` into `engine`; the number of steps it had done, or 0.

    Damaged ones are named in the log and passed over. UserError where it was written under other `facts`.
    """
    found = world.from_main(lambda: _newest(Path(folder), facts))
    if found is None:
        return 0
    path, state = engine.load_checkpoint(folder, tag=found.name, load_module_strict=False)
    if path is None:
        raise RuntimeError(f"{found}: DeepSpeed did not load this checkpoint")
    return state["step"]


def _complete(folder):
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


def _newest(folder, facts):
    for path in reversed(_complete(folder)):
        try:
            manifest = read_manifest(path, verify=True)
        except UserError as error:
            log.warning("passing over a damaged checkpoint: %s", error)
            continue
        differing = [key for key, value in facts.items() if manifest.get(key) != value]
        if differing:
            key = differing[0]
            raise UserError(f"{path}: this checkpoint was written with {key} {manifest.get(key)}, the run has "
                            f"{facts[key]}; run with the former, or delete {folder} to start again")
        return path
    return None
