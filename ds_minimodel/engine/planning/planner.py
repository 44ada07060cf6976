"""Plan memory placement and ZeRO settings of a run: what each part of a module is, where it lives, what it costs."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ds_minimodel.engine.planning import memory_and_traffic as formulas
from ds_minimodel.engine.planning.devices import Figures, memory_of
from ds_minimodel.engine.planning.forecast import Layout, Seconds, seconds_of_step
from ds_minimodel.engine.planning.memory_and_traffic import Choice, Memory, PlannedParameter, Sizes
from ds_minimodel.engine.planning.operators import Operator, operators_of
from ds_minimodel.engine.planning.trace import PASS_THROUGH, Trace, on_meta, trace
from ds_minimodel.engine.zero.config import BUCKET, zero_memory, zero_settings
from ds_minimodel.ops.precision import DTYPES

if TYPE_CHECKING:
    from ds_minimodel.engine.ranks.world import World
    from ds_minimodel.engine.run import Run

REPLICATED, PARTITIONED, COPIED_IN_NODE = "replicated", "partitioned", "partitioned, copy in node"


@dataclass(frozen=True)
class Part:
    """The parameters of one module that are of one kind; bytes on one device."""

    name: str
    kind: str
    placement: str
    parameters: int
    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True)
class Plan:
    """The plan of a run at `sizes`. wire: {collective: bytes that each rank sends a step}.

    zero: DeepSpeed's settings under "zero_optimization" that make this what runs.
    """

    sizes: Sizes
    parts: tuple[Part, ...]
    memory: Memory
    wire: dict[str, int]
    choice: Choice
    zero: dict[str, int | bool]

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.sizes.device_memory

    @property
    def between_nodes(self) -> int:
        """Bytes that each rank sends to other nodes a step."""
        return sum(sent for collective, sent in self.wire.items() if collective != formulas.IN_NODE)

    def summary(self) -> dict[str, Any]:
        """The predictions as JSON."""
        return {
            "fits": self.fits,
            "memory": asdict(self.memory),
            "wire": {**self.wire, "total": sum(self.wire.values())},
            "zero_optimization": self.zero,
        }


class Planner:
    """Makes plans for a module.

    module: with `requires_grad` as it trains, on any device; it is traced as a copy without memory.
    batches_of: for a micro-batch size, one micro-batch of each form that the run has. device: "cpu" or "cuda".
    capability: of the GPU, by default of this machine's.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        batches_of: Callable[[int], Iterable[dict[str, Any]]],
        precision: str,
        device: str,
        capability: tuple[int, int] | None = None,
    ):
        self.module, self.batches_of = on_meta(module, DTYPES[precision]), batches_of
        self.device, self.capability = device, capability
        self._traces: dict[tuple[int, bool], Trace] = {}

    def plan(self, sizes: Sizes) -> Plan:
        """The plan that fits with the fewest bytes on the wire between nodes, then with the least memory; where
        none fits, the one of least memory."""
        traced, parameters = self._trace(sizes), self.parameters(sizes)
        plans = [self._with(choice, sizes, parameters, traced) for choice in _choices(sizes, parameters)]
        fitting = [plan for plan in plans if plan.fits]
        if fitting:
            return min(fitting, key=lambda plan: (plan.between_nodes, plan.memory.total))
        return min(plans, key=lambda plan: plan.memory.total)

    def parameters(self, sizes: Sizes) -> list[PlannedParameter]:
        """The module's parameters, with the kinds that they have at `sizes`."""
        kinds = self._trace(sizes).kinds
        return [
            PlannedParameter(name, kinds[name], parameter.numel()) for name, parameter in self.module.named_parameters()
        ]

    def operators(self, sizes: Sizes) -> Mapping[Operator, int]:
        """How often each operator is called in a micro-batch, forward and backward."""
        return self._trace(sizes).operators

    def seconds(self, plan: Plan, figures: Figures, layout: Layout) -> Seconds:
        """Seconds of an optimizer step of a plan of this planner."""
        sizes = plan.sizes
        return seconds_of_step(
            self.operators(sizes), sizes, self.parameters(sizes), plan.choice, plan.wire, figures, layout
        )

    def fastest(self, sizes: Sizes, figures: Figures, layout: Layout) -> tuple[Plan, Seconds] | None:
        """The plan that takes the fewest seconds of those that fit, with the largest micro-batch at each ZeRO stage."""
        found = []
        for stage in range(4):
            at = sizes._replace(zero_stage=stage)
            micro = self.largest_micro_batch(at)
            if micro is not None:
                plan = self.plan(at._replace(micro_batch_size=micro))
                found.append((plan, self.seconds(plan, figures, layout)))
        return min(found, key=lambda pair: pair[1].total, default=None)

    def smallest_stage(self, sizes: Sizes) -> int | None:
        """The lowest ZeRO stage at which `sizes` fit, or None."""
        return next((stage for stage in range(4) if self.plan(sizes._replace(zero_stage=stage)).fits), None)

    def largest_micro_batch(self, sizes: Sizes) -> int | None:
        """The largest micro-batch that divides a rank's samples and fits, or None."""
        per_rank = sizes.batch_size // sizes.world_size
        divisors = [micro for micro in range(1, per_rank + 1) if per_rank % micro == 0]
        low, high = 0, len(divisors)  # all below `low` fit, none from `high` on: memory grows with the size
        while low < high:
            middle = (low + high) // 2
            if self.plan(sizes._replace(micro_batch_size=divisors[middle])).fits:
                low = middle + 1
            else:
                high = middle
        return divisors[low - 1] if low else None

    def _trace(self, sizes: Sizes) -> Trace:
        leaves = sizes.zero_stage > 0 or sizes.accumulation > 1
        key = sizes.micro, leaves
        if key not in self._traces:
            batches = self.batches_of(sizes.micro)
            found = [trace(self.module, batch, leaves, self.device, self.capability) for batch in batches]
            self._traces[key] = found[0]
            for other in found[1:]:
                self._traces[key] = self._traces[key].joined(other)
        return self._traces[key]

    def _with(self, choice: Choice, sizes: Sizes, parameters: list[PlannedParameter], traced: Trace) -> Plan:
        groups: dict[tuple[str, str], list[PlannedParameter]] = {}
        for parameter in parameters:
            groups.setdefault((part_of(parameter.name), parameter.kind), []).append(parameter)
        parts = tuple(_part(name, kind, group, sizes, choice) for (name, kind), group in groups.items())
        memory = formulas.memory_of_step(sizes, parameters, traced, choice)
        if self.device == "cpu":  # what is offloaded stays in the same memory
            memory = replace(memory, total=memory.total + memory.host)
        return Plan(
            sizes,
            parts,
            memory,
            formulas.traffic_of_step(sizes, parameters, choice),
            choice,
            self._zero(sizes, parameters, choice),
        )

    def _zero(self, sizes: Sizes, parameters: list[PlannedParameter], choice: Choice) -> dict[str, int | bool]:
        partitions_linear = any(
            isinstance(module, torch.nn.Linear) and f"{name}.weight" not in choice.replicated
            for name, module in self.module.named_modules()
        )
        return zero_settings(
            sizes.zero_stage,
            formulas.bucket_elements(parameters, sizes.zero),
            partitions_linear,
            choice.node_copy,
            sizes.zero.prefetch or BUCKET,
        )


def operators_of_batch(
    module: torch.nn.Module,
    batch: dict[str, Any],
    precision: str,
    device: str,
    trains: bool,
    capability: tuple[int, int] | None,
) -> Mapping[Operator, int]:
    """How often each operator is called in a batch through a module without a plan; arguments as of `operators_of`."""
    return operators_of(on_meta(module, DTYPES[precision]).train(trains), batch, device, trains, capability)


def part_of(name: str) -> str:
    """The module that a parameter is shown under: the entry of a list or dict that it lies in, or its parent."""
    path = name.split(".")
    ends = next((index + 1 for index, word in enumerate(path) if word.isdigit()), len(path) - 1)
    return ".".join(path[:ends])


def _part(name: str, kind: str, group: list[PlannedParameter], sizes: Sizes, choice: Choice) -> Part:
    placement = REPLICATED
    if not formulas.is_whole(group[0], sizes, choice):
        placement = COPIED_IN_NODE if choice.node_copy > 1 else PARTITIONED
    return Part(
        name,
        kind,
        placement,
        sum(parameter.numel for parameter in group),
        sum(formulas.weight_bytes(parameter, sizes, choice) for parameter in group),
        sum(formulas.gradient_bytes(parameter, sizes) for parameter in group),
        sum(formulas.optimizer_bytes(parameter, sizes) for parameter in group),
    )


def _choices(sizes: Sizes, parameters: list[PlannedParameter]) -> list[Choice]:
    """All placements of weights at stage 3.

    Any number of frozen modules, those first that the backward pass reads, can stay whole on each rank; and each node
    can hold a copy of the other weights.
    """
    if sizes.zero_stage < 3:
        return [Choice()]
    frozen = sorted(
        (parameter for parameter in parameters if not parameter.trains),
        key=lambda parameter: parameter.kind != PASS_THROUGH,
    )
    modules = list(dict.fromkeys(part_of(parameter.name) for parameter in frozen))
    has_nodes = 1 < sizes.ranks_per_node < sizes.world_size and sizes.world_size % sizes.ranks_per_node == 0
    node_copies = [sizes.ranks_per_node] if has_nodes and sizes.accumulation > 1 else []
    choices = []
    for number in range(len(modules) + 1):
        whole = frozenset(parameter.name for parameter in frozen if part_of(parameter.name) in modules[:number])
        choices += [Choice(whole, ranks) for ranks in (1, *node_copies)]
    return choices


def ranks_for_copy(ranks_per_node: int, tensor_parallel: int) -> int:
    """Ranks of a node that may hold a copy of the weights between them (hpZ), for Sizes.ranks_per_node.

    Its groups are of ranks in a row, which with tensor parallelism would be parts of one replica.
    """
    return ranks_per_node if tensor_parallel == 1 else 1


def plan_run(module: torch.nn.Module, batches: Callable[[int], list[dict[str, Any]]], run: Run, world: World) -> Plan:
    """The plan of a run, the same on every rank; arguments as of loop.train.

    If the module is split, it is the plan of the rank with the largest parts.
    """
    execution = run.execution
    ranks_of_hosts = Counter(world.gather(socket.gethostname)).values()
    device_memory = memory_of(world.device, max(ranks_of_hosts))
    ranks_per_node = ranks_for_copy(min(ranks_of_hosts), world.tensor.size)

    def make() -> Plan:
        sizes = Sizes(
            execution.zero_stage,
            execution.precision,
            execution.batch_size,
            execution.micro_batch_size,
            world.data.size,
            ranks_per_node,
            device_memory,
            zero_memory(run.deepspeed),
        )
        firsts = accumulate((steps for steps, *_ in run.accounting.phases[:-1]), initial=0)
        batch_of_each_phase = [batches(step)[0] for step in firsts]
        return Planner(module, lambda _: batch_of_each_phase, execution.precision, world.device.type).plan(sizes)

    return world.gather(make)[-1]  # the last rank's share is never less than another's (Group.shares)
