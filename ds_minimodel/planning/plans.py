"""Memory, traffic and time of each step of a recipe that trains on text, on so many ranks; nothing is started.

Finetuning takes less memory than the pretraining of the same body at the same micro-batch, and is not planned.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from ds_minimodel.bodies import BODIES
from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import Execution, replicas_of
from ds_minimodel.engine.partition import ParameterInfo, Partition, Setup, partition_of
from ds_minimodel.engine.zero.config import needed_stage, zero_memory
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.planning.devices import Device, named
from ds_minimodel.planning.forecast import least_seconds, seconds_of_step
from ds_minimodel.planning.memory import Memory, memory_of_step, traffic_of_step
from ds_minimodel.planning.steps import PlannedStep, planned_batch, planned_steps
from ds_minimodel.planning.tracing import Trace, on_meta, trace
from ds_minimodel.recipe.schema import Recipe

Row = dict[str, Any]
HOUR = 3600


@dataclass(frozen=True)
class Plan:
    """What a step holds and sends with a partition. traffic: {collective: bytes that each rank sends a step}."""

    partition: Partition
    memory: Memory
    traffic: dict[str, int]

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.partition.setup.device_memory

    def record(self) -> Row:
        """The plan as JSON."""
        return {
            "fits": self.fits,
            "memory": asdict(self.memory),
            "traffic": {**self.traffic, "total": sum(self.traffic.values())},
            "partition": self.partition.record(),
        }


class Planner:
    """Makes plans for a module on a device.

    module: with `requires_grad` as it trains, on any device; it is traced as a copy without memory.
    batch_of: one micro-batch of a size; only shapes and types count.
    """

    def __init__(
        self, module: torch.nn.Module, batch_of: Callable[[int], dict[str, Any]], precision: str, device: Device
    ):
        self.module, self.batch_of, self.device = on_meta(module, DTYPES[precision]), batch_of, device
        self._traces: dict[tuple[int, bool], Trace] = {}

    def plan(self, setup: Setup) -> Plan:
        """The plan of a step, with the partition that a run of this setup has."""
        partition, traced = partition_of(self.module, setup), self.trace(setup)
        memory = memory_of_step(partition, traced.activations, traced.peak)
        if self.device.type == "cpu":  # what is offloaded stays in the same memory
            memory = replace(memory, total=memory.total + memory.host)
        return Plan(partition, memory, traffic_of_step(partition))

    def seconds(self, plan: Plan) -> tuple[float, Row]:
        """Seconds of an optimizer step, and as JSON what takes them; the least seconds where nothing was measured."""
        setup = plan.partition.setup
        operators = self.trace(setup).operators
        if self.device.measured is None:
            return least_seconds(operators, setup, self.device), {}
        time = seconds_of_step(operators, plan.partition, plan.traffic, self.device)
        return time.total, time.record()

    def smallest_stage(self, setup: Setup) -> int | None:
        """The lowest ZeRO stage at which `setup` fits, or None."""
        return next((stage for stage in range(4) if self.plan(setup._replace(zero_stage=stage)).fits), None)

    def largest_micro_batch(self, setup: Setup) -> int | None:
        """The largest micro-batch that divides a rank's samples and fits, or None."""
        per_rank = setup.batch_size // setup.replicas
        divisors = [micro for micro in range(1, per_rank + 1) if per_rank % micro == 0]
        fitting = bisect_left(  # memory grows with the size
            divisors, True, key=lambda micro: not self.plan(setup._replace(micro_batch_size=micro)).fits
        )
        return divisors[fitting - 1] if fitting else None

    def trace(self, setup: Setup) -> Trace:
        """One micro-batch of the setup, traced."""
        leaves = setup.zero_stage > 0 or setup.split.accumulation > 1
        key = setup.split.micro, leaves
        if key not in self._traces:
            batch = self.batch_of(setup.split.micro)
            self._traces[key] = trace(self.module, batch, leaves, self.device.type)
        return self._traces[key]


def plans(recipe: Recipe, world_size: int, device_name: str, ranks_per_node: int | None = None) -> list[Row]:
    """Rows as JSON, one for each step on text of each system of the recipe.

    device_name: of devices.named. ranks_per_node: all, up to 8, where not given. "time" is None where nothing is known
    of the device. UserError for ranks that do not divide a batch, or that engine.tensor_parallel does not divide.
    """
    device, engine = named(device_name), recipe.engine
    ranks_per_node = ranks_per_node or min(8, world_size)
    replicas = replicas_of(world_size, engine.tensor_parallel)
    settings = engine.deepspeed.settings if engine.deepspeed else {}
    check_deepspeed_file(recipe, replicas)
    precision = device.resolve(engine.precision)
    planners: dict[Any, Planner] = {}

    def planner_of(step: PlannedStep, depth: int | None) -> Planner:
        """Steps of the same architecture, in which the same trains, share one."""
        key = step.name, step.module.body.config, step.module.body.head_depths, depth
        if key not in planners:
            batch_of = partial(planned_batch, recipe, replace(step, depth=depth))
            planners[key] = Planner(step.module, batch_of, precision, device)
        return planners[key]

    rows = []
    for step in planned_steps(recipe):
        batch_size, micro_batch_size = step.section.batch_size, engine.micro_batch_size
        execution = Execution(batch_size, micro_batch_size, engine.zero_stage, precision)
        setup = Setup(
            needed_stage(execution, replicas, step.section.clip, settings, device.type),
            precision,
            batch_size,
            micro_batch_size,
            world_size,
            min(ranks_per_node, world_size),
            device.memory_of_rank(ranks_per_node),
            engine.tensor_parallel,
            zero_memory(settings),
        )
        planner = planner_of(step, step.depth)
        plan = planner.plan(setup)
        time = None
        if device.peaks or device.measured:
            by_phase = [(planner_of(step, depth), share) for depth, share in step.phases]
            mean = sum(share * one.seconds(one.plan(setup))[0] for one, share in by_phase)
            time = _time(step, world_size, *planner.seconds(plan), mean)
        rows.append(
            {
                "system": step.system,
                "step": step.name,
                "device": device.name,
                **{key: value for key, value in setup._asdict().items() if key not in ("zero", "ranks")},
                "world_size": world_size,
                "ranks_per_node": ranks_per_node,
                "without_kernels": BODIES[recipe.model.kind].without_kernels,
                "micro_batch_size": setup.split.micro,
                **plan.record(),
                "smallest_zero_stage": planner.smallest_stage(setup),
                "largest_micro_batch": planner.largest_micro_batch(setup),
                "modules": _modules(plan.partition),
                "time": time,
            }
        )
    return rows


def _time(step: PlannedStep, world_size: int, seconds: float, parts: Row, mean: float) -> Row:
    """Time of a step as JSON. seconds: of an optimizer step of the last phase; mean: of all phases."""
    section = step.section
    hours = mean * section.steps / HOUR
    return {
        "is_bound": not parts,
        "seconds": seconds,
        "parts": parts or None,
        "tokens_per_second": section.batch_size * section.seq_length / seconds,
        "steps": section.steps,
        "hours": hours,
        "device_days": hours * world_size / 24,
    }


def planned_seconds(recipe: Recipe, device_name: str, world_size: int) -> dict[tuple[str, str], float]:
    """{(system, step): seconds of a job}; UserError for a device that was not measured."""
    if named(device_name).measured is None:
        raise UserError(
            f"--device {device_name}: no file of a device that was measured; make it with `ds-minimodel calibrate FILE`"
        )
    rows = plans(recipe, world_size, device_name)
    return {(row["system"], row["step"]): HOUR * row["time"]["hours"] for row in rows}


def _modules(partition: Partition) -> list[Row]:
    """Rows as JSON: the parameters of each module that train, and those that are frozen; bytes on one device."""
    groups: dict[tuple[str, bool, bool], list[ParameterInfo]] = {}
    for parameter in partition.parameters:
        key = _module_of(parameter.name), parameter.trains, partition.is_whole(parameter)
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "name": name,
            "trains": trains,
            "placement": "whole" if is_whole else "partitioned",
            "parameters": sum(parameter.numel for parameter in group),
            "weights": sum(map(partition.weight_bytes, group)),
            "gradients": sum(map(partition.gradient_bytes, group)),
            "optimizer": sum(map(partition.optimizer_bytes, group)),
        }
        for (name, trains, is_whole), group in groups.items()
    ]


def _module_of(name: str) -> str:
    """The module that a parameter is shown under: the entry of a list or dict that it lies in, or its parent."""
    path = name.split(".")
    ends = next((index + 1 for index, word in enumerate(path) if word.isdigit()), len(path) - 1)
    return ".".join(path[:ends])
