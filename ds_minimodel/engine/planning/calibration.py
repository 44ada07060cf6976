"""Measure a machine's figures: the rates of operators, latencies and links, from which plans foretell time.

A sample is layers and a loss made of the model's operators, at some sizes. Each operator is timed where it
is called in a pass through the sample, so that what lies in the caches is what lies there in training. As a program
this module is a rank that measures the links: `python -m ds_minimodel.engine.planning.calibration`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from ds_minimodel import ops
from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.planning.devices import Crowd, Device, Figures, Link, Overhead, machine_memory, memory_of
from ds_minimodel.engine.planning.forecast import update_kind, update_of
from ds_minimodel.engine.planning.memory_and_traffic import Choice, PlannedParameter, Sizes
from ds_minimodel.engine.planning.operators import VIEW, Operator, Recorder, operator_of
from ds_minimodel.engine.planning.trace import TRAINABLE
from ds_minimodel.engine.ranks.rendezvous import free_port
from ds_minimodel.engine.run import Accounting, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.ops.cpu import configure_cpu, has_bf16_products
from ds_minimodel.ops.precision import DTYPES, resolve_precision

if TYPE_CHECKING:
    from ds_minimodel.engine.ranks.world import World

Curves = dict[str, list[list[float]]]  # by kind of operator
Clock = Callable[[], float]  # seconds
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


class Sample(NamedTuple):
    """Sizes of a sample: sequences, their length, width, heads, and the vocabulary of the loss."""

    batch: int
    length: int
    width: int
    heads: int
    vocabulary: int


TINY = Sample(1, 8, 64, 1, 64)
SAMPLES = {
    "cpu": (
        Sample(4, 32, 128, 2, 2000),
        Sample(8, 64, 256, 4, 4000),
        Sample(8, 128, 256, 4, 8000),
        Sample(2, 256, 512, 8, 8000),
    ),
    "cuda": (Sample(16, 128, 256, 4, 8000), Sample(16, 512, 768, 12, 50_000), Sample(64, 512, 768, 12, 50_000)),
}
MASKED = 0.15
DROPOUT = 0.1
PASSES = 7  # through each sample, of which the fastest counts
TOGETHER = 20  # passes of ranks that measure together
STEPS = 7  # of a measurement that takes less than a millisecond or two
FEW, MANY, LARGE = (8, 16), (72, 16), (8, 1 << 19)  # tensors and elements of each, of modules whose update is timed
LINK_BYTES = 1 << 24
MEMORY_OF_A_RANK = 2 << 30  # of those that measure together


def device_name() -> str:
    """Name of this process's device: "NVIDIA H100 …", "CPU Intel(R) Xeon(R) …"."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return f"CPU {line.partition(':')[2].strip()}"
    return f"CPU {platform.machine()}"


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object], clock: Clock, repeats: int = 3) -> float:
    """Least seconds of one call, after a call to warm up."""
    function()
    times = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        function()
        synchronize()
        times.append(clock() - start)
    return min(times)


def calibrate(clock: Clock = time.perf_counter) -> Device:
    """This machine's device with its figures, as ranks of this process's threads have them.

    clock: another one where others use the machine, too. UserError where the ranks that measure the links fail.
    """
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if where.type == "cpu":
        configure_cpu()
    launch = _launch(where, clock)
    native = ["bf16"] if where.type == "cuda" or has_bf16_products() else []
    precisions = ["fp32", *(["fp16"] if where.type == "cuda" else []), *native]
    rates = _rates(precisions, where, clock, launch)
    overheads, updates = _engine(precisions, clock)
    sharing, link = _together(precisions, where, clock)
    memory = memory_of(where, 1) if where.type == "cuda" else machine_memory()
    return Device(
        name=device_name(),
        type=where.type,
        memory=memory,
        precision=resolve_precision("auto", where),
        shared=where.type == "cpu",
        source=f"measured on {time.strftime('%Y-%m-%d')} with torch {torch.__version__}",
        figures=Figures(
            rates={precision: kinds | updates[precision] for precision, kinds in rates.items()},
            launch=launch,
            runs_ahead=where.type == "cuda",
            overheads=overheads,
            in_node=link,
            sharing=sharing,
        ),
        capability=torch.cuda.get_device_capability(where) if where.type == "cuda" else None,
    )


# --- Operators ---


class _Timed(Recorder):
    """Times each operator; seconds: of the calls, in order."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock
        self.calls: list[tuple[Operator, float]] = []

    def call(self, op: Any, arguments: tuple, options: dict) -> Any:
        synchronize()
        start = self.clock()
        result = op(*arguments, **options)
        synchronize()
        seconds = self.clock() - start
        self.calls.append((operator_of(op, arguments, result), seconds))
        return result


def sample_pass(sample: Sample, dtype: torch.dtype, device: torch.device, dropout: float) -> Callable[[], None]:
    """A function that passes forward and backward through a sample."""
    batch, length, width, heads, vocabulary = sample

    def random(*shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(shape, device=device).mul_(0.02).to(dtype))

    table, positions = random(vocabulary, width), random(length, width)
    qkv, out, up, down = (
        random(3 * width, width),
        random(width, width),
        random(4 * width, width),
        random(width, 4 * width),
    )
    wide, narrow, gain, bias = random(3 * width), random(width), random(width), random(4 * width)
    logit_bias = random(vocabulary)
    weights = [table, positions, qkv, out, up, down, wide, narrow, gain, bias, logit_bias]
    tokens = torch.randint(vocabulary, (batch, length), device=device)
    keys = torch.arange(batch, dtype=torch.int32, device=device)
    read = torch.arange(max(1, int(MASKED * length)), device=device).expand(batch, -1)
    targets = tokens.gather(1, read).flatten()

    def keys_of(site: int | range) -> torch.Tensor | None:
        return ops.row_keys(keys, site, torch.arange(length, device=device)) if dropout else None

    def norm(x: torch.Tensor, residual: torch.Tensor, site: int) -> torch.Tensor:
        return ops.residual_layer_norm(x, residual, gain, narrow, 1e-5, dropout, keys_of(site))

    def go() -> None:
        embedded, projection = ops.embedding(tokens, table, 1)
        x = ops.dropout(norm(embedded, positions[None].expand_as(embedded), 0), dropout, keys_of(1))
        for _ in range(2):
            context = ops.attention(ops.linear(x, qkv, wide), heads, None, dropout, keys_of(range(2, 2 + heads)))
            x = norm(ops.linear(context, out, narrow), x, 99)
            x = norm(ops.linear(ops.bias_gelu(ops.linear(x, up), bias), down, narrow), x, 98)
        x_PH = x.gather(1, read[..., None].expand(-1, -1, width)).flatten(0, 1)
        ops.linear_cross_entropy(x_PH, projection, logit_bias, targets).backward()
        for weight in weights:
            weight.grad = None

    return go


def _rates(precisions: Sequence[str], device: torch.device, clock: Clock, launch: float) -> dict[str, Curves]:
    """{precision: {kind: curve}} of all operators of the samples, sizes in octaves."""
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for precision in precisions:
        for sample in SAMPLES[device.type]:
            for dropout in (0.0, DROPOUT):
                go = sample_pass(sample, DTYPES[precision], device, dropout)
                for operator, seconds in _shares_of_a_pass(go, clock, launch if device.type == "cpu" else 0.0):
                    if operator.kind != VIEW and operator.work:
                        key = operator.precision, operator.kind, round(2 * math.log2(operator.size))
                        found[key].append((operator.work, seconds))
    curves: dict[str, Curves] = {precision: {} for precision in precisions}
    for (precision, kind, size), calls in sorted(found.items()):
        if precision in curves:
            rate = sum(work for work, _ in calls) / max(1e-12, sum(seconds for _, seconds in calls))
            curves[precision].setdefault(kind, []).append([2 ** (size / 2), rate])
    return curves


def _watched(go: Callable[[], None], clock: Clock) -> list[tuple[Operator, float]]:
    """The operators of a pass and the seconds of each, in the fastest of some passes."""
    go()
    passes = []
    for _ in range(PASSES):
        with _Timed(clock) as timed:
            go()
        passes.append(timed.calls)
    return min(passes, key=lambda calls: sum(seconds for _, seconds in calls))


def _shares_of_a_pass(go: Callable[[], None], clock: Clock, launch: float) -> list[tuple[Operator, float]]:
    """The operators of a pass and each one's share of its seconds, less `launch` for each.

    Shares, because what an operator takes while it is watched is not what it adds to a pass: the sum may be more
    or less.
    """
    calls = _watched(go, clock)
    whole = seconds_of(go, clock, PASSES)
    watched = sum(seconds for operator, seconds in calls if operator.kind != VIEW)
    scale = max(whole - launch * len(calls), whole / 2) / watched
    return [(operator, scale * seconds) for operator, seconds in calls]


def _launch(device: torch.device, clock: Clock) -> float:
    """Seconds that the host takes for an operator, views among them: of a pass that has next to nothing to compute."""
    go = sample_pass(TINY, torch.float32, device, DROPOUT)
    return seconds_of(go, clock, STEPS) / len(_watched(go, clock))


# --- The engine ---


class _Tensors(torch.nn.Module):
    """A module of `count` parameters of `numel` elements each, whose passes take little."""

    loss_names = ("loss",)

    def __init__(self, count: int, numel: int):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(numel)) for _ in range(count))

    def forward(self, _batch: dict) -> torch.Tensor:
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum()[None]


def _engine(precisions: Sequence[str], clock: Clock) -> tuple[dict[str, list[Overhead]], dict[str, Curves]]:
    """What the engine takes beside the passes, by precision and ZeRO stage: overheads, and rates of its updates."""
    from ds_minimodel.engine.ranks.world import join_ranks

    world = join_ranks()
    overheads: dict[str, list[Overhead]] = {}
    rates: dict[str, Curves] = {}
    for precision in precisions:
        overheads[precision], rates[precision] = [], {}
        for stage in range(4):
            few, many, large = (_engine_seconds(*size, precision, stage, world, clock) for size in (FEW, MANY, LARGE))
            tensor = max(0.0, (many - few) / (MANY[0] - FEW[0]))
            overhead = Overhead(step=max(0.0, few - FEW[0] * tensor), tensor=tensor)
            count, numel = LARGE
            sizes = Sizes(stage, precision, 1, 1, 1, 1, 0)
            update = update_of(sizes, [PlannedParameter("", TRAINABLE, count * numel)], Choice())
            moved = sum(operator.bytes * times for operator, times in update.items())
            seconds = max(1e-6, large - overhead.step - count * tensor)
            overheads[precision].append(overhead)
            rates[precision][update_kind(stage)] = [[moved, moved / seconds]]
    return overheads, rates


def _engine_seconds(count: int, numel: int, precision: str, stage: int, world: World, clock: Clock) -> float:
    """Seconds of a step of the engine on `count` tensors, less those of the passes alone."""
    from ds_minimodel.engine.loop import optimizer_step
    from ds_minimodel.engine.zero.config import zero_settings
    from ds_minimodel.engine.zero.engine import build_engine, destroy

    run = Run(Schedule(10**6, 1e-3), Execution(1, 1, stage, precision), Accounting(1, ((10**6, 1.0, 1.0),)))
    plain = _Tensors(count, numel).to(world.device, DTYPES[precision])

    def passes() -> None:
        plain({}).backward()
        plain.zero_grad()

    zero = zero_settings(stage, max(1 << 20, count * numel), partitions_linear=False, node_copy=1)
    engine = build_engine(_Tensors(count, numel), run, world, zero if stage else None)
    step = partial(optimizer_step, engine, [{"count": 1}], 1, run, world, 1)
    seconds = seconds_of(step, clock, STEPS) - seconds_of(passes, clock, STEPS)
    destroy(engine)
    return seconds


# --- Ranks together ---


def _together(precisions: Sequence[str], device: torch.device, clock: Clock) -> tuple[list[Crowd], Link | None]:
    """(crowds of ranks that share the machine, none on GPUs; the link between two ranks or more)."""
    if device.type == "cuda":
        return [], _ranks(2, ["fp32"], device, clock)[1] if torch.cuda.device_count() > 1 else None
    at_once = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
    most = max(2, machine_memory() // MEMORY_OF_A_RANK)
    numbers = sorted({1, *(min(most, ranks) for ranks in (at_once, 2 * at_once))})
    found = {ranks: _ranks(ranks, precisions, device, clock) for ranks in numbers}
    alone = found[1][0]
    crowds = [Crowd(ranks=n, slowdown=max(1.0, seconds / alone), link=link) for n, (seconds, link) in found.items()]
    return crowds, crowds[1].link


def _ranks(ranks: int, precisions: Sequence[str], device: torch.device, clock: Clock) -> tuple[float, Link | None]:
    """(seconds of a pass that `ranks` ranks make at once, in each precision; the link between them, None for one)."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    command = [sys.executable, "-m", "ds_minimodel.engine.planning.calibration"]
    command += [device.type, clock.__name__, str(TOGETHER), *precisions]
    processes = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        answers = [process.communicate(timeout=300)[0] for process in processes]
        seconds, bandwidth, latency = json.loads(answers[0].splitlines()[-1])
        return seconds, Link(bandwidth=bandwidth, latency=latency) if ranks > 1 else None
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        raise UserError(
            f"calibrate: of {ranks} ranks that measure together, one ended without an answer; run it again"
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _measure_together(device_type: str, clock_name: str, passes: int, precisions: Sequence[str]) -> None:
    """As a rank: print as JSON what _ranks returns, seconds of the slowest rank, bandwidth and latency."""
    device = torch.device(device_type)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["RANK"]))
    else:
        configure_cpu()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    clock = getattr(time, clock_name)
    seconds = 0.0
    for precision in precisions:
        go = sample_pass(SAMPLES[device.type][-2], DTYPES[precision], device, DROPOUT)
        go()
        slowest = []
        for _ in range(passes):
            dist.barrier()
            taken = torch.tensor(seconds_of(go, clock, 1), device=device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            slowest.append(float(taken))
        seconds += min(slowest)
    small, large = (torch.zeros(size, dtype=torch.uint8, device=device) for size in (64, LINK_BYTES))
    hops = 2 * math.ceil(math.log2(dist.get_world_size()))  # there and back
    sent = 2 * (1 - 1 / dist.get_world_size()) * LINK_BYTES
    message = seconds_of(lambda: dist.all_reduce(small), clock, STEPS)
    whole = seconds_of(lambda: dist.all_reduce(large), clock, PASSES)
    print(json.dumps([seconds, sent / max(1e-9, whole - message), message / max(1, hops)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    _measure_together(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
