"""Losses, rate and cost of a run while it trains: metrics.jsonl, TensorBoard events, progress."""

from __future__ import annotations

import contextlib
import json
import math
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Count,
    Stored,
    atomic_write,
    clear_write_errors,
    read_model_lines,
)
from ds_minimodel.common.progress import Progress
from ds_minimodel.training.run import Run
from ds_minimodel.training.world import World

# One line of metrics.jsonl.
MetricsLine = dict[str, float]
# A function of the step that evaluates the model, and gives what is added to the step's line.
Evaluate = Callable[[int], MetricsLine]


class _Line(Stored):
    """What a resumed run reads of a record."""

    step: Count


class MetricsLogger:
    """The metrics of a run, added up on the device.

    Each `report` writes mean losses, rate and cost to `folder`/metrics.jsonl, to TensorBoard and to
    progress. It is a context manager, within which the files are open. A resumed run drops the
    records after its start, which it is about to write again.
    """

    def __init__(
        self,
        names: Sequence[str],
        run: Run,
        world: World,
        folder: Path | str,
        label: str,
        start: int,
    ) -> None:
        """Prepare the metrics of a run.

        Args:
            names: of the losses.
            run: all numbers of the run.
            world: the ranks that train together.
            folder: of the run.
            label: name of the run for progress and messages.
            start: step that the run goes on from.
        """
        self.names = names
        self.run = run
        self.world = world
        self.folder = Path(folder)
        self.label = label
        self.start = start
        self.last_step = start
        self.last_time = time.monotonic()
        # This is a tensor from the first `add` on.
        self.sums: Any = 0
        # Progress shows the last of the last scores beside the loss.
        self.note = ""
        self.every = max(1, min(100, run.schedule.steps // 100))
        # The gradient's norm of the step that is reported next, where it is known.
        self.gradient_norm: float | None = None
        if world.device.type == "cuda":
            # An earlier run in this process may have had another peak.
            torch.cuda.reset_peak_memory_stats(world.device)
        self.progress = Progress(label, run.schedule.steps, "steps", start, quiet=not world.is_main)

    def add(self, sums: torch.Tensor, count: int) -> None:
        """Add losses of one micro-batch.

        Args:
            sums: (losses,) on this rank.
            count: loss terms of the whole batch on all ranks.
        """
        self.sums = self.sums + sums / count

    def is_due(self, step: int) -> bool:
        """Return whether losses are reported after `step` steps."""
        return step % self.every == 0 or step == self.run.schedule.steps

    def report(self, step: int, evaluate: Evaluate = lambda _: {}) -> None:
        """Write the means over the steps since the last report.

        Args:
            step: number of steps done.
            evaluate: gives scores of the model as it is now.

        Raises:
            UserError: the loss is not finite, or a file cannot be written.
        """
        if step == self.last_step:
            return
        record = self._read(step)
        self.world.replicated(lambda: self._check(record))
        self.write(record, evaluate)
        self.progress.update(step, f"loss {record['loss']:.3f}{self.note}")

    def write(self, record: MetricsLine, evaluate: Evaluate) -> None:
        """Write a record with the scores of its step.

        Args:
            record: what is known of the step.
            evaluate: gives scores of the model as it is now; its time does not count as training's.
        """
        scores = evaluate(int(record["step"]))
        record |= scores
        self.last_time = time.monotonic()
        # A full disk ends all ranks.
        self.world.broadcast_from_rank0(lambda: self._write(record))
        if scores:
            name, value = list(scores.items())[-1]
            self.note = f", {name} {value:.3f}"

    def _check(self, record: MetricsLine) -> None:
        if not math.isfinite(record["loss"]):
            raise UserError(
                f"{self.label}: the loss is not finite at step {record['step']}; lower lr, or use "
                "bf16 or fp32; the last checkpoint is from before"
            )

    def _read(self, step: int) -> MetricsLine:
        steps = step - self.last_step
        if self.world.data.size > 1:
            torch.distributed.all_reduce(self.sums, group=self.world.data.handle)
        # A GPU has ended its steps when their sums are here.
        losses = (self.sums / steps).tolist()
        now = time.monotonic()
        seconds = now - self.last_time
        self.sums = 0
        self.last_step = step
        self.last_time = now
        accounting = self.run.accounting
        record: MetricsLine = {
            "step": step,
            "loss": sum(losses) / len(losses),
            "lr": self.run.schedule.lr_at(step - 1),
        }
        if len(losses) > 1:
            record |= {f"loss/{name}": loss for name, loss in zip(self.names, losses, strict=True)}
        if self.gradient_norm is not None:
            record["gradient_norm"] = self.gradient_norm
            self.gradient_norm = None
        record |= {
            "tokens_per_second": steps * accounting.tokens_per_step / seconds,
            "tflops_per_second": steps * accounting.formula_flops / seconds / 1e12,
            "eflops": accounting.eflops_until(step),
            "executed_eflops": step * accounting.executed_flops / 1e18,
            "memory_gib": _peak_memory(self.world.device) / 2**30,
        }
        return record

    def __enter__(self) -> MetricsLogger:
        # A full disk ends all ranks.
        self.world.broadcast_from_rank0(self._open)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.world.broadcast_from_rank0(self._close)
            self.progress.close()
        elif self.world.is_main:
            # The error that ends the run says more.
            with contextlib.suppress(UserError):
                self._close()

    def _open(self) -> None:
        """Open metrics.jsonl and the TensorBoard events.

        Raises:
            UserError: one cannot be written, as in the methods below.
        """
        from torch.utils.tensorboard import SummaryWriter

        path = self.folder / "metrics.jsonl"
        advice = "delete this line, or the file: training does not depend on it"
        lines = read_model_lines(path, _Line, advice)
        with atomic_write(path, "w") as file:
            kept = [line for line in lines if line.step <= self.start] if self.start else []
            file.writelines(json.dumps(line.model_dump()) + "\n" for line in kept)
        with clear_write_errors(path):
            self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  (closed in `_close`)
        self.hook = threading.excepthook
        threading.excepthook = self._report_thread
        with clear_write_errors(self.folder / "events"):
            self.events = SummaryWriter(self.folder / "events", purge_step=self.start + 1)

    def _write(self, record: MetricsLine) -> None:
        with clear_write_errors(self.file.name):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
            for name, value in record.items():
                if name != "step":
                    self.events.add_scalar(name, value, record["step"])

    def _close(self) -> None:
        with clear_write_errors(self.file.name):
            self.file.close()
        try:
            with clear_write_errors(self.folder / "events"):
                self.events.close()
        finally:
            threading.excepthook = self.hook

    def _report_thread(self, failure: threading.ExceptHookArgs) -> None:
        """Say what a thread died of."""
        # An error of TensorBoard's thread is raised by writing or closing.
        is_tensorboards = type(failure.thread).__module__.startswith("tensorboard.")
        if not (is_tensorboards and isinstance(failure.exc_value, OSError)):
            self.hook(failure)


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
