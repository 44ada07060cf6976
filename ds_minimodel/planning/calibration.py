"""Measure a machine: the rates of operators, overheads of the engine and links, from which plans predict time.

What is timed are small models of the package's own, built as for training: each operator where it is called in their
passes, so that what lies in the caches is what lies there in training. As a program this module is a rank that measures
together with others: `python -m ds_minimodel.planning.calibration`.
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

from ds_minimodel.bodies.roberta import RobertaConfig
from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.partition import Setup, machine_memory, memory_of, partition_of
from ds_minimodel.engine.ranks.rendezvous import free_port
from ds_minimodel.engine.run import Accounting, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.model.models import LanguageModel
from ds_minimodel.objectives import OBJECTIVES
from ds_minimodel.ops.cpu import configure_cpu, has_bf16_products
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.planning.devices import Device, Link, Measured, Overhead
from ds_minimodel.planning.forecast import update_kind, update_of
from ds_minimodel.planning.tracing import VIEW, Operator, Recorder, operator_of

if TYPE_CHECKING:
    from ds_minimodel.engine.ranks.world import World

RateCurves = dict[str, list[list[float]]]  # by kind of operator
Clock = Callable[[], float]  # seconds
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


class ModelSize(NamedTuple):
    """Sizes of a small model and its batch: sequences, their length, width, heads, and the vocabulary."""

    batch: int
    length: int
    width: int
    heads: int
    vocabulary: int


TINY = ModelSize(1, 8, 64, 1, 64)
MODEL_SIZES = {
    "cpu": (
        ModelSize(4, 32, 128, 2, 2000),
        ModelSize(8, 64, 256, 4, 4000),
        ModelSize(8, 128, 256, 4, 8000),
        ModelSize(2, 256, 512, 8, 8000),
    ),
    "cuda": (
        ModelSize(16, 128, 256, 4, 8000),
        ModelSize(16, 512, 768, 12, 50_000),
        ModelSize(64, 512, 768, 12, 50_000),
    ),
}
MASKED = 0.15
PASSES = 7  # through each model, of which the fastest counts
TOGETHER = 20  # passes of ranks that measure together
REPEATS = 7  # of a measurement that takes less than a millisecond or two
FEW, MANY, LARGE = (8, 16), (72, 16), (8, 1 << 19)  # tensors and elements of each, of modules whose update is timed
LINK_BYTES = 1 << 24


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
    """This machine's device as it was measured, by ranks of as many threads as this process has.

    clock: another one where others use the machine, too. UserError where the ranks that measure together fail.
    """
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_gpu = where.type == "cuda"
    if is_gpu:
        check_gpus()
    else:
        configure_cpu()
    precisions = ["fp32", *(["fp16"] if is_gpu else []), *(["bf16"] if is_gpu or has_bf16_products() else [])]
    tiny = passes(TINY, torch.float32, where)
    launch = seconds_of(tiny, clock, REPEATS) / len(_watched(tiny, clock))  # of a pass with next to nothing to compute
    rates = _rates(precisions, where, clock, 0.0 if is_gpu else launch)
    overheads, updates = _engine(precisions, clock)
    slowdown, link = _together(precisions, where, clock)
    return Device(
        name=device_name(),
        type=where.type,
        memory=memory_of(where, 1),
        precision=resolve_precision("auto", where),
        shared=not is_gpu,
        source=f"measured on {time.strftime('%Y-%m-%d')} with torch {torch.__version__}",
        capability=torch.cuda.get_device_capability(where) if is_gpu else None,
        measured=Measured(
            rates={precision: kinds | updates[precision] for precision, kinds in rates.items()},
            launch=launch,
            overheads=overheads,
            slowdown=slowdown,
            in_node=link,
        ),
    )


# --- Operators ---


def passes(size: ModelSize, dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    """A function that passes forward and backward through a model of two layers, all of which trains."""
    batch, length, width, heads, vocabulary = size
    config = RobertaConfig(num_layers=2, hidden_size=width, num_heads=heads, ffn_size=4 * width, max_positions=length)
    module = LanguageModel(config, vocabulary, (2,), OBJECTIVES["masked-lm"]).to(device, dtype)
    tokens = torch.randint(vocabulary, (batch, length), device=device)
    read = torch.arange(max(1, int(MASKED * length)), device=device).repeat(batch, 1)
    keys = torch.arange(batch, dtype=torch.int32, device=device)
    given = {"tokens": tokens, "read": read, "targets": tokens.gather(1, read), "sample_keys": keys}

    def go() -> None:
        module(given).sum().backward()
        module.zero_grad()

    return go


class _Timed(Recorder):
    """Times each operator; calls: in order, with their seconds."""

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


def _rates(precisions: Sequence[str], device: torch.device, clock: Clock, launch: float) -> dict[str, RateCurves]:
    """{precision: {kind: curve}} of all operators of the models, sizes in half octaves."""
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    for precision in precisions:
        for model in MODEL_SIZES[device.type]:
            for operator, seconds in _shares_of_a_pass(passes(model, DTYPES[precision], device), clock, launch):
                if operator.kind != VIEW and operator.work:
                    key = operator.precision, operator.kind, round(2 * math.log2(operator.size))
                    found[key].append((operator.work, seconds))
    curves: dict[str, RateCurves] = {precision: {} for precision in precisions}
    for (precision, kind, size), calls in sorted(found.items()):
        rate = sum(work for work, _ in calls) / max(1e-12, sum(seconds for _, seconds in calls))
        curves[precision].setdefault(kind, []).append([2 ** (size / 2), rate])
    return curves


def _watched(go: Callable[[], None], clock: Clock) -> list[tuple[Operator, float]]:
    """The operators of a pass and the seconds of each, in the fastest of some passes."""
    go()
    found = []
    for _ in range(PASSES):
        with _Timed(clock) as timed:
            go()
        found.append(timed.calls)
    return min(found, key=lambda calls: sum(seconds for _, seconds in calls))


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


# --- The engine ---


class _Tensors(torch.nn.Module):
    """A module of `count` parameters of `numel` elements each, whose passes take little."""

    def __init__(self, count: int, numel: int):
        super().__init__()
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(numel)) for _ in range(count))

    def forward(self, _batch: dict) -> torch.Tensor:
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum()[None]


def _engine(precisions: Sequence[str], clock: Clock) -> tuple[dict[str, list[Overhead]], dict[str, RateCurves]]:
    """What the engine takes beside the passes, by precision and ZeRO stage: overheads, and rates of its updates."""
    from ds_minimodel.engine.ranks.world import join_ranks

    world = join_ranks()
    overheads: dict[str, list[Overhead]] = {precision: [] for precision in precisions}
    rates: dict[str, RateCurves] = {precision: {} for precision in precisions}
    for precision in precisions:
        for stage in range(4):
            setup = Setup(stage, precision, 1, 1, 1, 1, machine_memory())
            few, many, large = (_engine_seconds(_Tensors(*size), setup, world, clock) for size in (FEW, MANY, LARGE))
            tensor = max(0.0, (many - few) / (MANY[0] - FEW[0]))
            overhead = Overhead(step=max(0.0, few - FEW[0] * tensor), tensor=tensor)
            update = update_of(partition_of(_Tensors(*LARGE), setup))
            moved = sum(operator.bytes * times for operator, times in update.items())
            seconds = max(1e-6, large - overhead.step - LARGE[0] * tensor)
            overheads[precision].append(overhead)
            rates[precision][update_kind(stage)] = [[moved, moved / seconds]]
    return overheads, rates


def _engine_seconds(module: _Tensors, setup: Setup, world: World, clock: Clock) -> float:
    """Seconds of a step of the engine, less those of the passes alone."""
    from ds_minimodel.engine.loop import optimizer_step
    from ds_minimodel.engine.zero.engine import build_engine, destroy

    run = Run(
        Schedule(10**6, 1e-3), Execution(1, 1, setup.zero_stage, setup.precision), Accounting(1, ((10**6, 1.0, 1.0),))
    )
    plain = module.to(world.device, DTYPES[setup.precision])

    def alone() -> None:
        plain({}).backward()
        plain.zero_grad()

    of_passes = seconds_of(alone, clock, REPEATS)
    engine = build_engine(module.float(), run, world, partition_of(module, setup).zero)
    step = partial(optimizer_step, engine, [{"count": 1}], 1, run, world, 1)
    seconds = seconds_of(step, clock, REPEATS)
    destroy(engine)
    return seconds - of_passes


# --- Ranks together ---


def _together(precisions: Sequence[str], device: torch.device, clock: Clock) -> tuple[list[list[float]], Link | None]:
    """(Measured.slowdown, the link between ranks) of as many ranks as the cores hold, or of two GPUs."""
    if device.type == "cuda":
        link = _ranks(2, ["fp32"], device, clock)[1] if torch.cuda.device_count() > 1 else None
        return [[1.0, 1.0]], link
    most = max(2, (os.cpu_count() or 1) // torch.get_num_threads())
    (alone, _), (crowded, link) = (_ranks(ranks, precisions, device, clock) for ranks in (1, most))
    return [[1.0, 1.0], [float(most), max(1.0, crowded / alone)]], link


def _ranks(ranks: int, precisions: Sequence[str], device: torch.device, clock: Clock) -> tuple[float, Link | None]:
    """(seconds of a pass that `ranks` ranks make at once, in each precision; the link between them, None for one)."""
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    command = [sys.executable, "-m", "ds_minimodel.planning.calibration"]
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


def _measure_together(device_type: str, clock_name: str, number: int, precisions: Sequence[str]) -> None:
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
        go = passes(MODEL_SIZES[device.type][-2], DTYPES[precision], device)
        go()
        slowest = []
        for _ in range(number):
            dist.barrier()
            taken = torch.tensor(seconds_of(go, clock, 1), device=device)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            slowest.append(float(taken))
        seconds += min(slowest)
    small, large = (torch.zeros(size, dtype=torch.uint8, device=device) for size in (64, LINK_BYTES))
    hops = 2 * math.ceil(math.log2(dist.get_world_size()))  # there and back
    sent = 2 * (1 - 1 / dist.get_world_size()) * LINK_BYTES
    message = seconds_of(lambda: dist.all_reduce(small), clock, REPEATS)
    whole = seconds_of(lambda: dist.all_reduce(large), clock, PASSES)
    print(json.dumps([seconds, sent / max(1e-9, whole - message), message / max(1, hops)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    _measure_together(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
