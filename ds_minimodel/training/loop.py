"""The one training loop, and the thread that makes the batches of its coming steps."""

from __future__ import annotations

import contextlib
import importlib.metadata
import signal
from collections import deque
from collections.abc import Callable, Collection, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ds_minimodel import __version__
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.common.memory import keeping_blocks, trim
from ds_minimodel.launch.process import Stopped, StopSignals
from ds_minimodel.training.checkpoints.checkpoints import Checkpoints
from ds_minimodel.training.metrics import MetricsLogger
from ds_minimodel.training.partition import Partition, partition_of_run
from ds_minimodel.training.run import Run
from ds_minimodel.training.world import World, break_dead_connections
from ds_minimodel.training.zero.engine import (
    backward_and_step,
    build_engine,
    destroy,
    gradient_norm,
    set_learning_rate,
)
from ds_minimodel.training.zero.state import read_masters

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

# Host tensors, and "count", the number of loss terms.
Batch = dict[str, Any]
# A function of the step, which gives this rank's micro-batches.
Batches = Callable[[int], list[Batch]]
Weights = dict[str, torch.Tensor]
# A function of the step, the module and what gives its trained weights.
Scoring = Callable[[int, torch.nn.Module, Callable[[], Weights]], dict[str, float]]
# So many steps are prepared ahead.
AHEAD = 2


class RunIdentity(NamedTuple):
    """Which run it is.

    Attributes:
        folder: of the run; an earlier run's checkpoints in it are continued.
        label: name of the run for progress and messages.
        job: hash of all that decides the outcome; a checkpoint of another job is refused.
    """

    folder: Path
    label: str
    job: str


class Snapshots(NamedTuple):
    """What is done with the trained weights on the way.

    Attributes:
        steps: steps after which `take` is called; 0: before the first.
        take: called on every rank with (step, trained weights).
    """

    steps: Collection[int] = ()
    take: Callable[[int, Weights], object] = lambda *_: None


class Evaluation(NamedTuple):
    """Scores of the model while it trains, which change nothing of the training.

    Attributes:
        steps: steps after which it is evaluated; 0: before the first.
        scores: called on every rank with (step, the module in evaluation mode, a function that
            gives the trained weights); gives {name: number} for the metrics.
    """

    steps: Collection[int] = ()
    scores: Scoring = lambda *_: {}


def train(
    module: torch.nn.Module,
    batches: Batches,
    run: Run,
    world: World,
    identity: RunIdentity,
    snapshots: Snapshots = Snapshots(),  # noqa: B008  (it is immutable)
    evaluation: Evaluation = Evaluation(),  # noqa: B008  (it is immutable)
) -> Weights:
    """Train the parameters of `module` that require gradients until the steps of `run` are done.

    The gradient is that of the mean over losses of (sum over all ranks and micro-batches) / (global
    count).

    Args:
        module: `module(batch)` gives one sum of losses for each of `module.loss_names`, a tensor
            (losses,).
        batches: `batches(step)` gives this rank's micro-batches of an optimizer step, a list of
            dicts of host tensors with "count", the number of loss terms. A function of the step
            alone, so that a resumed run sees what an uninterrupted one would.
        run: all numbers of the run.
        world: the ranks that train together.
        identity: folder, name and job of the run.
        snapshots: of the weights on the way.
        evaluation: of the model on the way, whose scores stand in the metrics beside the loss.

    Returns:
        {name: fp32 tensor on the CPU} of what trained.

    Raises:
        Stopped: after SIGINT or SIGTERM, once a checkpoint is written.
    """
    folder, label, job = identity
    partition = partition_of_run(module, run, world)
    engine = build_engine(module, run, world, partition.zero, partition.whole)
    checkpoints = Checkpoints(engine, folder / "checkpoints", run, world, job)
    # DeepSpeed and the checkpoints have made groups, whose connections are new.
    break_dead_connections()
    steps = run.schedule.steps
    first = checkpoints.load_newest()
    world.broadcast_from_rank0(
        lambda: write_json(folder / "run.json", _run_record(run, world, partition))
    )
    if first == 0 and 0 in snapshots.steps:
        snapshots.take(0, read_masters(engine))

    def save(step: int) -> None:
        if checkpoints.saved < step:
            # No state is saved whose loss nobody has looked at.
            metrics.report(step)
            checkpoints.save(step)

    def scores(step: int) -> dict[str, float]:
        if step not in evaluation.steps:
            return {}
        engine.eval()
        with torch.no_grad():
            values = evaluation.scores(step, engine.module, lambda: read_masters(engine))
        engine.train()
        trim()
        return values

    def stop_after(step: int) -> None:
        save(step)
        checkpoints.wait()
        message = f"stopped after step {step} of {steps}; the same command resumes from there"
        raise Stopped(stop.received or signal.SIGTERM, message)

    loss_names = cast(list[str], module.loss_names)
    with (
        # At stage 3 gathered weights come and go among activations: a heap would keep the holes.
        contextlib.nullcontext() if run.execution.zero_stage == 3 else keeping_blocks(),
        MetricsLogger(loss_names, run, world, folder, label, first) as metrics,
        StopSignals() as stop,
        checkpoints,
        contextlib.closing(prefetched(batches, first, steps)) as stream,
    ):
        if first == 0 and 0 in evaluation.steps:
            metrics.write({"step": 0, "eflops": 0.0}, scores)
        done = first
        for step in range(first, steps):
            micro_batches = next(stream)
            # All ranks of a replica see the same samples; one of them counts.
            count = 0
            if world.tensor.rank == 0:
                count = sum(batch["count"] for batch in micro_batches)
            count, stopping, failed = world.sum(
                count, stop.received or 0, checkpoints.error is not None
            )
            if failed:
                checkpoints.wait()
            if stopping:
                stop_after(step)
            # Short blocks may leave a batch without a masked token.
            count = max(1, count)
            done = step + 1
            is_due = metrics.is_due(done) or done in evaluation.steps
            for sums in optimizer_step(engine, micro_batches, count, run, world, step):
                metrics.add(sums, count)
            if is_due:
                metrics.gradient_norm = gradient_norm(engine, run, world)
                metrics.report(done, scores)
            if done in snapshots.steps:
                snapshots.take(done, read_masters(engine))
            # A longer run goes on from where the rate begins to fall, so that is saved, too.
            ends_stable_rate = done == run.schedule.stable_steps
            if ends_stable_rate or (run.checkpoints.is_due(done) and done < steps):
                save(done)
        checkpoints.wait()
        (stopping,) = world.sum(stop.received or 0)
        if stopping:
            stop_after(done)
    weights = read_masters(engine)
    destroy(engine)
    world.replicated(lambda: _check_finite(weights, label))
    return weights


def optimizer_step(
    engine: DeepSpeedEngine,
    micro_batches: list[Batch],
    count: int,
    run: Run,
    world: World,
    step: int,
) -> list[torch.Tensor]:
    """Run forward and backward passes and the update of one step.

    Args:
        engine: DeepSpeed's.
        micro_batches: this rank's share of the step.
        count: loss terms of the whole batch on all ranks, at least 1.
        run: all numbers of the run.
        world: the ranks that train together.
        step: counted from 0.

    Returns:
        Sums of losses (losses,) of each micro-batch, still on the device.
    """
    sums_of_batches = []
    set_learning_rate(engine, run.schedule.lr_at(step))
    for batch in micro_batches:
        sums = engine(to_device(batch, world.device))
        # DeepSpeed averages gradients over data ranks; the count is global, so undo that.
        backward_and_step(engine, sums.mean() * (world.data.size / count), run)
        sums_of_batches.append(sums.detach())
    return sums_of_batches


def _check_finite(weights: Weights, label: str) -> None:
    """Raise UserError for weights that are not finite."""
    # The last update comes after the last check of the loss.
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise UserError(
                f"{label}: {name} is not finite after the last step; lower lr, or use bf16 or fp32"
            )


def _run_record(run: Run, world: World, partition: Partition) -> dict[str, Any]:
    """Return the contents of run.json: all numbers of the run, its ranks, versions, partition."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "CPU"
    return {
        **run.record(),
        "world_size": world.size,
        "tensor_parallel": world.tensor.size,
        "device": device,
        "ds_minimodel": __version__,
        "torch": torch.__version__,
        "deepspeed": importlib.metadata.version("deepspeed"),
        "partition": partition.record(),
    }


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on `device`."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def prefetched(batches: Batches, first: int, end: int) -> Generator[list[Batch], None, None]:
    """Yield the micro-batches of the steps from `first` to before `end`.

    A thread makes them, AHEAD steps before they are asked for.
    """
    pool = ThreadPoolExecutor(1)
    coming: deque[Future[list[Batch]]] = deque()
    try:
        for step in range(first, end):
            coming.append(pool.submit(batches, step))
            if len(coming) > AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
