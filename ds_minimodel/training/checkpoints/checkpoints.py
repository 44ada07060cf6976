"""Checkpoints that are complete or absent, written beside the training.

A save copies the training state to host memory; a thread writes the copy under another name, fsyncs
it, lists sizes and hashes in a manifest and renames; `latest` moves last. Frozen weights are not in
it: they are in the artifacts that the step reads. Everything else that a run needs to go on is the
number of steps done, because data and dropout are functions of it.
"""

from __future__ import annotations

import copy
import logging
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import clear_write_errors, read_manifest
from ds_minimodel.training.checkpoints import storage
from ds_minimodel.training.run import Run
from ds_minimodel.training.world import HOST_TIMEOUT, World
from ds_minimodel.training.zero.files import EngineFiles
from ds_minimodel.training.zero.state import read_loss_scale, trainable, write_loss_scale

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, whose every method is called on all ranks.

    It is a context manager: at the end of a block without errors all are on disk.

    Attributes:
        saved: step of the newest one.
        error: what a save has failed by, which `wait` raises.
    """

    def __init__(
        self, engine: DeepSpeedEngine, folder: Path | str, run: Run, world: World, job: str
    ):
        """Prepare the checkpoints of a run.

        Args:
            engine: DeepSpeed's.
            folder: of the checkpoints.
            run: all numbers of the run.
            world: the ranks that train together.
            job: hash of all that decides the run's outcome; a checkpoint of another is refused.
        """
        self.engine = engine
        self.folder = Path(folder)
        self.world = world
        self.keep_last = run.checkpoints.keep_last
        self.stable_steps = run.schedule.stable_steps
        # Facts in which a checkpoint must agree with the run that goes on from it.
        self.binding: dict[str, Any] = {
            "job": job,
            "precision": run.execution.precision,
            "tensor_parallel": world.tensor.size,
        }
        self.zero_stage = run.execution.zero_stage
        # A group of their own for the threads: collectives of two threads on one group would mix.
        group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT) if world.size > 1 else None
        self.writers = replace(world, host_group=group)
        self.files = EngineFiles(engine, to_host)
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.saved = 0

    def load_newest(self) -> int:
        """Go on from the newest undamaged checkpoint.

        Damaged ones are named in the log and passed over.

        Returns:
            The number of steps that it had done, or 0 without any.

        Raises:
            UserError: all are damaged, or the newest good one belongs to another job.
        """
        name = self._newest_undamaged()
        if name is not None:
            manifest = self.world.broadcast_from_rank0(lambda: self._checked_manifest(name))
            self.saved = manifest["step"]
            self.files.load(self.folder / name, manifest, self.world.tensor.rank)
            write_loss_scale(self.engine, manifest["loss_scale"])
        return self.saved

    def save(self, step: int) -> None:
        """Take the state after `step` steps, and begin to write it.

        The former checkpoint is on disk before.
        """
        self.wait()
        self.world.broadcast_from_rank0(lambda: storage.start_partial(self.folder, step))
        states = self.files.take(self.folder, storage.checkpoint_name(step) + storage.PARTIAL, step)
        if torch.cuda.is_available():
            # The copies run beside the host's work.
            torch.cuda.synchronize()
        facts = {
            **self.binding,
            "zero_stage": self.zero_stage,
            "loss_scale": read_loss_scale(self.engine),
            "parameters": [name for name, _ in trainable(self.engine)],
        }
        self.thread = threading.Thread(target=self._write, args=(step, states, facts), daemon=True)
        self.thread.start()
        self.saved = step

    def wait(self) -> None:
        """Wait until the last save is on disk; UserError where it could not be written."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.wait()
        elif self.thread is not None and not issubclass(kind, KeyboardInterrupt):
            self.thread.join()
        is_writing = self.thread is not None and self.thread.is_alive()
        if self.writers.host_group is not None and not is_writing:
            dist.destroy_process_group(self.writers.host_group)

    def _write(self, step: int, states: dict[Path, Any], facts: dict[str, Any]) -> None:
        """Write this rank's files in the thread, then on rank 0 manifest and final name."""
        try:
            written = self.writers.all_gather_object(lambda: self._write_files(step, states))
            states.clear()
            self.writers.broadcast_from_rank0(lambda: self._complete(step, written, facts))
        except BaseException as error:
            # `wait` raises it in the main thread.
            self.error = error

    def _write_files(self, step: int, states: dict[Path, Any]) -> dict[str, dict]:
        if not _is_finite(list(states.values())):
            raise UserError(
                f"{self.folder}: the training state is not finite after step {step} and is not "
                "saved; lower lr, or use bf16 or fp32"
            )
        with clear_write_errors(self.folder):
            return {path.name: storage.write_hashed(path, state) for path, state in states.items()}

    def _complete(self, step: int, written: list[dict[str, dict]], facts: dict[str, Any]) -> None:
        with clear_write_errors(self.folder):
            files: dict[str, dict] = {}
            for files_of_rank in written:
                files |= files_of_rank
            storage.complete_partial(self.folder, step, of_files=files, facts=facts)
            storage.drop_old(
                self.folder, step, keep_last=self.keep_last, stable_steps=self.stable_steps
            )

    def _newest_undamaged(self) -> str | None:
        """Return the name of the newest undamaged checkpoint, None where there is none at all."""
        names = self.world.broadcast_from_rank0(lambda: storage.newest_first(self.folder))
        damages: list[str] = []
        for name in names:
            # Each rank reads and hashes its share of the files.
            examine = partial(storage.damage, self.folder / name, self.world.rank, self.world.size)
            damage = next(filter(None, self.world.all_gather_object(examine)), None)
            if damage is None:
                return name
            damages.append(damage)
            if self.world.is_main:
                log.warning("passing over a damaged checkpoint: %s", damage)
        return self.world.broadcast_from_rank0(lambda: self._refuse(damages))

    def _refuse(self, damages: list[str]) -> None:
        if damages:
            raise UserError(
                f"no checkpoint is left undamaged: {'; '.join(damages)}; put one back from a "
                f"copy, or delete {self.folder} to start again from step 0"
            )

    def _checked_manifest(self, name: str) -> dict[str, Any]:
        """Return the manifest of a checkpoint; UserError where it is of another run."""
        manifest = read_manifest(self.folder / name)
        for key, here in self.binding.items():
            saved = manifest.get(key)
            if saved != here:
                raise UserError(
                    f"{self.folder / name}: a checkpoint of another run ({key}: {saved}, here "
                    f"{here}); use another workdir, or delete {self.folder} to start again"
                )
        return manifest


def to_host(state: Any) -> Any:
    """Copy nested containers to host memory; copies from a GPU may still run.

    Tensors that are one stay one. Views become compact: torch.save would else write all that they
    are views of.
    """
    # The copies made so far, by the memory that they are of.
    copies: dict[Any, torch.Tensor] = {}

    def copy_of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        # Empty tensors have no memory.
        key: Any = id(value)
        if value.numel():
            key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in copies:
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            copies[key] = host.copy_(value.detach(), non_blocking=True)
        return copies[key]

    # A size would become a plain tuple.
    return tree_map(copy_of, state, is_leaf=lambda value: isinstance(value, torch.Size))


def _is_finite(state: Any) -> bool:
    """Return whether all tensors of nested containers are finite, without making another."""
    return all(
        torch.isfinite(torch.stack(torch.aminmax(value))).all()
        for value in tree_leaves(state)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
    )
