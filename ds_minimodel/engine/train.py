"""The one training loop."""

import logging
import math
import queue
import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path

import deepspeed
import torch

from ds_minimodel import __version__
from ds_minimodel.engine import checkpoint
from ds_minimodel.engine.config import deepspeed_config
from ds_minimodel.engine.masters import read_masters, write_masters
from ds_minimodel.engine.metrics import Metrics
from ds_minimodel.errors import UserError
from ds_minimodel.files import write_json
from ds_minimodel.progress import Progress

log = logging.getLogger(__name__)


class Stopped(Exception):
    """Training was asked to stop (SIGINT or SIGTERM); its state is saved."""

    def __init__(self, signal_number, message):
        super().__init__(message)
        self.signal_number = signal_number


def train(module, batches, run, world, folder, label, snapshot_steps=(), on_snapshot=None):
    """Train the parameters of `module` that require gradients; return them when `run.steps` are done.

    module: `module(batch)` gives one sum of losses for each of `module.loss_names`, a tensor (losses,).
    batches: `batches(step)` gives this rank's micro-batches of an optimizer step, a list of dicts of host
        tensors with "count", the number of loss terms; a function of the step alone, so that a resumed run
        sees what an uninterrupted one would.
    folder: of the run; an earlier run's checkpoints in it are continued.
    on_snapshot: called on every rank with (step, trained weights) after each step in `snapshot_steps`.
    Returns {name: fp32 tensor on the CPU} of what trained. The gradient is that of the mean over losses of
    (sum over all ranks and micro-batches) / (global count).
    """
    engine = _initialize(module, run, world)
    facts = {"world_size": world.size, "zero_stage": run.zero_stage, "precision": run.precision}
    checkpoints = Path(folder) / "checkpoints"
    start = checkpoint.load_newest(engine, checkpoints, world, facts)
    world.from_main(lambda: write_json(Path(folder) / "run.json", _circumstances(run, world)))
    if start == 0 and 0 in snapshot_steps:
        on_snapshot(0, read_masters(engine))
    metrics = Metrics(folder, start, enabled=world.is_main)
    progress = Progress(label, run.steps, "steps", start, quiet=not world.is_main)
    meter = _Meter(module.loss_names, run, world, start)
    log_every = max(1, min(100, run.steps // 100))
    stop = _StopSignals()
    saved = start

    def report(step):
        record = meter.read(step)
        if not math.isfinite(record["loss"]):
            raise UserError(f"{label}: the loss is not finite at step {step}; lower lr, or use bf16 or fp32; "
                            f"{checkpoints} keeps the last good state")
        metrics.write(record)
        progress.update(step, f"loss {record['loss']:.3f}")

    def save(step):
        nonlocal saved
        if saved < step:
            if meter.last_step < step:      # never save a state whose loss nobody has looked at
                report(step)
            checkpoint.save(engine, checkpoints, step, world, facts, run.keep_last)
            saved = step

    def end_if(stopping, step):
        if stopping:
            save(step)
            raise Stopped(stop.received or signal.SIGTERM,
                          f"stopped after step {step} of {run.steps}; the same command goes on from there")

    with metrics, stop, _Prefetch(batches, start, run.steps) as stream:
        for step in range(start, run.steps):
            micro_batches = next(stream)
            count, stopping = world.sum(sum(batch["count"] for batch in micro_batches), stop.received or 0)
            end_if(stopping, step)
            count = max(1, count)       # short blocks may leave a whole batch without a masked token
            for group in engine.optimizer.param_groups:
                group["lr"] = run.lr_at(step)
            for batch in micro_batches:
                sums = engine(_to_device(batch, world.device))
                # DeepSpeed averages gradients over ranks; the count is global, so undo that.
                loss = sums.mean() * (world.size / count)
                engine.backward(loss * _missing_loss_scale(engine, run), scale_wrt_gas=False)
                meter.add(sums.detach(), count)
                engine.step()
            done = step + 1
            if done % log_every == 0 or done == run.steps:
                report(done)
            if done in snapshot_steps:
                on_snapshot(done, read_masters(engine))
            if done % run.checkpoint_every == 0 and done < run.steps:
                save(done)
        end_if(*world.sum(stop.received or 0), run.steps)
    progress.close()
    weights = read_masters(engine)
    engine.destroy()
    return weights


def _circumstances(run, world):
    """What a run was done with, resolved: all its numbers, ranks, device and versions."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    return {**asdict(run), "world_size": world.size, "device": device, "ds_minimodel": __version__,
            "torch": torch.__version__, "deepspeed": deepspeed.__version__}


def _initialize(module, run, world):
    original = {name: parameter.detach().clone() for name, parameter in module.named_parameters()
                if parameter.requires_grad}
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=run.lr, betas=(run.beta1, run.beta2), eps=run.eps,
                                  weight_decay=run.weight_decay, fused=True)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, dist_init_required=False,
                                      config=deepspeed_config(run, world.size))
    if run.zero_stage == 0 and run.precision != "fp32":
        # DeepSpeed takes an optimizer step with zero gradients at start-up here (DeepSpeed#5151): undo it.
        engine.optimizer.optimizer.state.clear()
    if run.precision != "fp32":
        write_masters(engine, original)
    engine.train()
    return engine


def _missing_loss_scale(engine, run):
    """What the loss must be multiplied by: in fp16 at stage 0 DeepSpeed 0.19.8 divides gradients by the loss
    scale, but does not multiply the loss by it (DeepSpeed#8393)."""
    return engine.optimizer.loss_scale if run.precision == "fp16" and run.zero_stage == 0 else 1.0


def _to_device(batch, device):
    return {name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()}


class _Meter:
    """Losses, rate and cost since the last reading. Sums stay on the device until they are read."""

    def __init__(self, names, run, world, start):
        self.names, self.run, self.world = names, run, world
        self.sums, self.last_step, self.last_time = 0, start, time.monotonic()

    def add(self, sums, count):
        self.sums = self.sums + sums / count

    def read(self, step):
        """One metrics record: means over the steps since the last reading."""
        steps, now = step - self.last_step, time.monotonic()
        if self.world.size > 1:
            torch.distributed.all_reduce(self.sums)
        losses = (self.sums / steps).tolist()
        seconds = now - self.last_time
        self.sums, self.last_step, self.last_time = 0, step, now
        run, previous = self.run, step - steps
        formula, executed = run.flops_until(step)
        record = {"step": step, "loss": sum(losses) / len(losses), "lr": run.lr_at(step - 1)}
        if len(losses) > 1:
            record |= {f"loss/{name}": loss for name, loss in zip(self.names, losses)}
        record |= {"tokens_per_second": steps * run.tokens_per_step / seconds,
                   "tflops_per_second": (formula - run.flops_until(previous)[0]) / seconds / 1e12,
                   "eflops": formula / 1e18, "executed_eflops": executed / 1e18,
                   "memory_gib": _peak_memory(self.world.device) / 2**30}
        return record


def _peak_memory(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024        # Linux counts in KiB


class _StopSignals:
    """Remembers SIGINT or SIGTERM instead of dying of it; only a SIGINT after it stops at once.

    Launchers send SIGTERM after the terminal's SIGINT, which must not cut the saving short.
    """

    def __init__(self):
        self.received, self.old = None, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.old = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_):
        for number, handler in self.old.items():
            signal.signal(number, handler)

    def _receive(self, number, _frame):
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None:
            log.warning("stopping after this step; the state is being saved")
        self.received = self.received or number


class _Prefetch:
    """Computes the micro-batches of coming steps in a thread, two steps ahead of the loop."""

    def __init__(self, batches, start, stop):
        self.queue, self.done = queue.Queue(maxsize=2), threading.Event()
        self.thread = threading.Thread(target=self._work, args=(batches, start, stop), daemon=True)

    def _work(self, batches, start, stop):
        for step in range(start, stop):
            try:
                item = batches(step)
            except BaseException as error:      # handed to the loop, which raises it
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
