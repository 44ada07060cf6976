"""The one training loop."""

import queue
import signal
import threading
from dataclasses import asdict
from pathlib import Path

import deepspeed
import torch

from ds_minimodel import __version__
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.engine.checkpoints.checkpoints import Checkpoints
from ds_minimodel.engine.meter import Meter
from ds_minimodel.engine.planning.planner import plan_run
from ds_minimodel.engine.ranks.signals import Stopped, StopSignals
from ds_minimodel.engine.zero.build import build_engine, destroy, missing_loss_scale
from ds_minimodel.engine.zero.masters import read_masters


def train(module, batches, run, world, folder, label, job, snapshot_steps=(), on_snapshot=None):
    """Train the parameters of `module` that require gradients; return them when `run.steps` are done.

    module: `module(batch)` gives one sum of losses for each of `module.loss_names`, a tensor (losses,).
    batches: `batches(step)` gives this rank's micro-batches of an optimizer step, a list of dicts of host
        tensors with "count", the number of loss terms; a function of the step alone, so that a resumed run
        sees what an uninterrupted one would.
    folder: of the run; an earlier run's checkpoints in it are continued.
    job: hash of all that decides the outcome; a checkpoint of another job is refused.
    on_snapshot: called on every rank with (step, trained weights) after each step in `snapshot_steps`.
    Returns {name: fp32 tensor on the CPU} of what trained. The gradient is that of the mean over losses of
    (sum over all ranks and micro-batches) / (global count). Raises Stopped after SIGINT or SIGTERM.
    """
    plan = plan_run(module, batches, run, world)
    engine = build_engine(module, run, world, plan)
    checkpoints = Checkpoints(engine, Path(folder) / "checkpoints", run, world, job)
    start = checkpoints.load_newest()
    world.from_main(lambda: write_json(Path(folder) / "run.json", _circumstances(run, world, plan)))
    if start == 0 and 0 in snapshot_steps:
        on_snapshot(0, read_masters(engine))

    def save(step):
        if checkpoints.saved < step:
            meter.report(step)  # never save a state whose loss nobody has looked at
            checkpoints.save(step)

    def end_if(stopping, step):
        if stopping:
            save(step)
            checkpoints.wait()
            raise Stopped(
                stop.received or signal.SIGTERM,
                f"stopped after step {step} of {run.steps}; the same command goes on from there",
            )

    with (
        Meter(module.loss_names, run, world, folder, label, start) as meter,
        StopSignals() as stop,
        checkpoints,
        Prefetch(batches, start, run.steps) as stream,
    ):
        for step in range(start, run.steps):
            micro_batches = next(stream)
            counted = sum(batch["count"] for batch in micro_batches) if world.tensor.rank == 0 else 0
            count, stopping, failed = world.sum(counted, stop.received or 0, checkpoints.has_failed)
            if failed:
                checkpoints.wait()
            end_if(stopping, step)
            count = max(1, count)  # short blocks may leave a batch without a masked token
            for sums in optimizer_step(engine, micro_batches, count, run, world, step):
                meter.add(sums, count)
            done = step + 1
            if meter.is_due(done):
                meter.report(done)
            if done in snapshot_steps:
                on_snapshot(done, read_masters(engine))
            if done % run.checkpoint_every == 0 and done < run.steps:
                save(done)
        checkpoints.wait()
        end_if(*world.sum(stop.received or 0), run.steps)
    weights = read_masters(engine)
    destroy(engine)
    world.alike(lambda: _check_finite(weights, label))
    return weights


def optimizer_step(engine, micro_batches, count, run, world, step):
    """Forward, backward and update of one step; the sums of losses of each micro-batch, still on the device.

    count: loss terms of the whole batch on all ranks, at least 1. Nothing here waits for the device.
    """
    sums_of_batches = []
    for group in engine.optimizer.param_groups:
        group["lr"] = run.lr_at(step)
    for batch in micro_batches:
        sums = engine(_to_device(batch, world.device))
        # DeepSpeed averages gradients over data ranks; the count is global, so undo that.
        loss = sums.mean() * (world.data.size / count)
        engine.backward(loss * missing_loss_scale(engine, run), scale_wrt_gas=False)
        engine.step()
        sums_of_batches.append(sums.detach())
    return sums_of_batches


def _check_finite(weights, label):
    """The last update comes after the last look at the loss."""
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise UserError(f"{label}: {name} is not finite after the last step; lower lr, or use bf16 or fp32")


def _circumstances(run, world, plan):
    """What a run was done with, resolved: all its numbers, ranks, device and versions; and what was predicted."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    return {
        **asdict(run),
        "world_size": world.size,
        "tensor_parallel": world.tensor.size,
        "device": device,
        "ds_minimodel": __version__,
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "plan": plan.summary(),
    }


def _to_device(batch, device):
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


# --- merged from ds_minimodel.engine.loop: The batches of coming steps, made while the device works on the present one.


class Prefetch:
    """Computes the micro-batches of coming steps in a thread, two steps ahead of the loop."""

    def __init__(self, batches, start, stop):
        self.queue, self.done = queue.Queue(maxsize=2), threading.Event()
        self.thread = threading.Thread(target=self._work, args=(batches, start, stop), daemon=True)

    def _work(self, batches, start, stop):
        for step in range(start, stop):
            try:
                item = batches(step)
            except BaseException as error:  # handed to the loop, which raises it
                item = error
            while not self.done.is_set():
                try:
                    self.queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self.done.is_set() or isinstance(item, BaseException):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __next__(self):
        item = self.queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
