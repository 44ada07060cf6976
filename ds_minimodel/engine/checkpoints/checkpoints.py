"""Checkpoints that are complete or absent, written beside the training.

A save copies the training state to host memory; a thread writes the copy under another name, fsyncs and
verifies it, lists sizes and hashes in a manifest and renames; `latest` moves last. Frozen weights are not in it:
they are in the artifacts that the step reads. Everything else that a run needs to go on is the number of steps
done, because data and dropout are functions of it.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path

from torch import distributed as dist

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import clear_write_errors, read_manifest
from ds_minimodel.engine.checkpoints import storage as on_disk
from ds_minimodel.engine.checkpoints.host_copies import HostCopies, is_finite, wait_for_copies, write_verified
from ds_minimodel.engine.checkpoints.restore import restore
from ds_minimodel.engine.ranks.world import HOST_TIMEOUT
from ds_minimodel.engine.zero.fragments import loss_scaler_of, trainable

log = logging.getLogger(__name__)

LOSS_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter")


class Checkpoints:
    """The checkpoints of one run. A context manager: at the end of a block without errors all are on disk.

    Every method is called on all ranks. `saved` is the step of the newest one.
    """

    def __init__(self, engine, folder, run, world, job):
        """job: hash of all that decides the run's outcome; a checkpoint of another job is refused."""
        self.engine, self.folder, self.run, self.world = engine, Path(folder), run, world
        self.binding = {
            "job": job,
            "precision": run.precision,
            "tensor_parallel": world.tensor.size,
            "parameters": [
                [name, list(getattr(parameter, "ds_shape", parameter.shape))] for name, parameter in trainable(engine)
            ],
        }
        self.layout = {
            "world_size": world.size,
            "zero_stage": run.zero_stage,
            "optimizer": type(engine.optimizer).__name__,
        }
        # A group of their own for the threads: collectives of two threads on one group would mix.
        group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT) if world.size > 1 else None
        self.writers = replace(world, host_group=group)
        self.copies = engine.checkpoint_engine = HostCopies()
        # DeepSpeed copies a script beside the checkpoints: on a full disk rank 0 alone would fail.
        engine._copy_recovery_script = lambda _folder: None
        self.thread, self.error, self.saved = None, None, 0

    def load_newest(self):
        """Go on from the newest undamaged checkpoint; the number of steps it had done, or 0 without any.

        Damaged ones are named in the log and passed over. UserError where all are damaged, or where the
        newest good one belongs to another job.
        """
        name = self._newest_undamaged()
        if name is not None:
            manifest = self.world.from_main(lambda: self._manifest_of_this_job(name))
            self.saved = manifest["step"]
            if self._is_same_layout(manifest):
                path, _ = self.engine.load_checkpoint(self.folder, tag=name, load_module_strict=False)
                assert path is not None, f"{name}: DeepSpeed did not load this checkpoint"
            else:
                restore(self.engine, self.folder / name, manifest, self.world.tensor.rank)
                self._say(
                    "going on from step %d, saved by %s, with %s", self.saved, _text(manifest), _text(self.layout)
                )
            if loss_scaler_of(self.engine) is not None:
                vars(loss_scaler_of(self.engine)).update(manifest["loss_scale"])
        return self.saved

    def save(self, step):
        """Take the state after `step` steps and begin to write it, once the former one is on disk."""
        self.wait()
        self.world.from_main(lambda: self._start_partial(step))
        # Into host memory, by HostCopies.
        self.engine.save_checkpoint(
            self.folder,
            tag=on_disk.name_of(step) + on_disk.PARTIAL,
            save_latest=False,
            client_state={"step": step},
            exclude_frozen_parameters=True,
        )
        wait_for_copies()
        states, self.copies.taken = self.copies.taken, {}
        scaler = loss_scaler_of(self.engine)
        facts = {
            **self.binding,
            **self.layout,
            "milestone": on_disk.is_milestone(step, self.run.keep_every),
            "loss_scale": {key: getattr(scaler, key) for key in LOSS_SCALE} if scaler else None,
        }
        self.thread = threading.Thread(target=self._write, args=(step, states, facts), daemon=True)
        self.thread.start()
        self.saved = step

    @property
    def has_failed(self):
        """Whether a save in the background has failed; `wait` raises what happened."""
        return self.error is not None

    def wait(self):
        """Until the last save is on disk; UserError where it could not be written."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            raise self.error

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        if kind is None:
            self.wait()
        elif self.thread is not None and not issubclass(kind, KeyboardInterrupt):
            self.thread.join()
        if self.writers.host_group is not None and (self.thread is None or not self.thread.is_alive()):
            dist.destroy_process_group(self.writers.host_group)

    def _start_partial(self, step):
        with clear_write_errors(self.folder):
            on_disk.start_partial(self.folder, step)

    def _write(self, step, states, facts):
        """In the thread: this rank's files, then on rank 0 all that makes them a checkpoint."""
        try:
            written = self.writers.gather(lambda: self._write_files(step, states))
            states.clear()
            self.writers.from_main(lambda: self._complete(step, written, facts))
        except BaseException as error:  # raised by `wait`
            self.error = error

    def _write_files(self, step, states):
        if not is_finite(list(states.values())):
            raise UserError(
                f"{self.folder}: the training state is not finite after step {step} and is not "
                "saved; lower lr, or use bf16 or fp32"
            )
        with clear_write_errors(self.folder):
            return {path.name: write_verified(path, state) for path, state in states.items()}

    def _complete(self, step, written, facts):
        with clear_write_errors(self.folder):
            files = {name: facts_of_file for each in written for name, facts_of_file in each.items()}
            on_disk.complete_partial(self.folder, step, files, facts)
            on_disk.drop_all_but(self.folder, step, self.run.keep_last, self.run.keep_every)

    def _newest_undamaged(self):
        names, damages = self.world.from_main(lambda: on_disk.newest_first(self.folder)), []
        for name in names:
            # Each rank reads and hashes its share of the files.
            found = self.world.gather(
                lambda name=name: on_disk.damage(self.folder / name, self.world.rank, self.world.size)
            )
            damages.append(next(filter(None, found), None))
            if damages[-1] is None:
                return name
            self._say("passing over a damaged checkpoint: %s", damages[-1])
        return self.world.from_main(lambda: self._refuse(damages))

    def _refuse(self, damages):
        if damages:
            raise UserError(
                f"no checkpoint is left undamaged: {'; '.join(damages)}; put one back from a copy, "
                f"or delete {self.folder} to start again from step 0"
            )

    def _manifest_of_this_job(self, name):
        manifest = read_manifest(self.folder / name)
        for key, here in self.binding.items():
            saved = manifest.get(key)
            if saved != here and key == "parameters":
                saved, here = _first_difference(dict(saved), dict(here))
            if saved != here:
                raise UserError(
                    f"{self.folder / name}: a checkpoint of another run ({key}: {saved}, here "
                    f"{here}); use another workdir, or delete {self.folder} to start again"
                )
        return manifest

    def _is_same_layout(self, manifest):
        return {key: manifest[key] for key in self.layout} == self.layout

    def _say(self, *message):
        if self.world.is_main:
            log.warning(*message)


def _first_difference(saved, here):
    """Two texts on the first parameter of which {name: shape} differ, or on their order."""
    for name in sorted({*saved, *here}):
        if saved.get(name) != here.get(name):
            return f"{name} {saved.get(name, 'frozen')}", f"{name} {here.get(name, 'frozen')}"
    return list(saved), list(here)


def _text(layout):
    ranks = layout["world_size"]
    return f"{ranks} rank{'s' if ranks > 1 else ''} at ZeRO stage {layout['zero_stage']}"
