"""Foretell the seconds of a step from its operators, its traffic and a device's figures.

An operator takes its work by the device's rate for its kind and size; a product no less than its bytes take. An update
reads and writes what the plan of memory holds. A collective takes what each rank sends by the slowest link on its way,
and a message's latency for each hop of a tree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.planning.devices import Figures, Link, Overhead, rate_at
from ds_minimodel.engine.planning.memory_and_traffic import IN_NODE, Choice, PlannedParameter, Sizes, is_whole
from ds_minimodel.engine.planning.operators import ALL_GATHER, ALL_REDUCE, COPY, DROPS, PRODUCT, VIEW, Operator
from ds_minimodel.engine.zero.config import BUCKET

CONTROL, MESSAGES = "control", 3  # all-reduces of a number: loss terms, overflow, norm of the gradients
ADAMW_BYTES = 28  # of an element: gradient, weight and two moments read, all but the first written; fp32


@dataclass(frozen=True)
class Layout:
    """Ranks of a run: in all, on each node, and to a replica."""

    world_size: int
    ranks_per_node: int
    tensor_parallel: int = 1

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.ranks_per_node)

    @property
    def ranks_of_a_node(self) -> int:
        """Of a whole node, or of the only one, which may have fewer."""
        return min(self.ranks_per_node, self.world_size)

    @property
    def replicas_per_node(self) -> int:
        return max(1, self.ranks_of_a_node // self.tensor_parallel)


@dataclass(frozen=True)
class Seconds:
    """Seconds of an optimizer step by what takes them.

    products: multiplications of matrices. memory: reading and writing. launches: the host's work for each operator and
    in the engine. network: collectives. runs_ahead: as of Figures.
    """

    products: float
    memory: float
    launches: float
    network: float
    runs_ahead: bool

    @property
    def total(self) -> float:
        device = self.products + self.memory
        return (max(device, self.launches) if self.runs_ahead else device + self.launches) + self.network

    @property
    def bound(self) -> str:
        """What takes most of the time: "products", "memory", "launches" or "network"."""
        device = self.products + self.memory
        if self.runs_ahead and device > self.launches:
            return max(("products", "memory", "network"), key=lambda kind: getattr(self, kind))
        if self.runs_ahead:
            return "launches" if self.launches >= self.network else "network"
        return max(("products", "memory", "launches", "network"), key=lambda kind: getattr(self, kind))

    def summary(self) -> dict[str, Any]:
        """The seconds as JSON."""
        parts = {key: value for key, value in asdict(self).items() if key != "runs_ahead"}
        return {**parts, "seconds": self.total, "bound": self.bound}


def flops_of(operators: Mapping[Operator, int]) -> float:
    """FLOPs of the operators, products and attention."""
    return sum(operator.flops * count for operator, count in operators.items())


def seconds_of(operators: Mapping[Operator, int], figures: Figures, layout: Layout) -> Seconds:
    """Seconds of the operators on one rank, without the engine and what it exchanges."""
    products = memory = launches = network = 0.0
    for operator, count in operators.items():
        launches += count * figures.launch
        if operator.kind == VIEW:
            continue
        if operator.kind in (ALL_REDUCE, ALL_GATHER):
            network += count * _exchange_seconds(operator, figures, layout)
            continue
        kinds = figures.kinds(operator.precision)
        worked = operator.work / rate_at(_curve(kinds, operator), operator.size)
        if operator.flops:
            moved = operator.bytes / rate_at(kinds[COPY], operator.bytes)
            products += count * worked if worked >= moved else 0.0
            memory += count * moved if moved > worked else 0.0
        else:
            memory += count * worked
    slower = figures.slowdown(layout.ranks_of_a_node)
    return Seconds(slower * products, slower * memory, slower * launches, network, figures.runs_ahead)


def seconds_of_step(
    operators: Mapping[Operator, int],
    sizes: Sizes,
    parameters: Collection[PlannedParameter],
    choice: Choice,
    wire: Mapping[str, int],
    figures: Figures,
    layout: Layout,
) -> Seconds:
    """Seconds of an optimizer step; operators: of one micro-batch, the rest as of its plan.

    UserError for more ranks than the figures have a link for, and for a precision that they do not have.
    """
    trained = [parameter.numel for parameter in parameters if parameter.trains]
    whole = Counter({operator: count * sizes.accumulation for operator, count in operators.items()})
    whole.update(update_of(sizes, parameters, choice))
    taken = seconds_of(whole, figures, layout)
    measured = figures.overheads.get(sizes.precision)
    overhead = measured[sizes.zero_stage] if measured else Overhead()
    engine = overhead.step + overhead.tensor * len(trained) * sizes.accumulation
    slower = figures.slowdown(layout.ranks_of_a_node)
    calls = {name: _calls(name, sizes, trained) for name in wire} | {CONTROL: MESSAGES}
    sent = {**wire, CONTROL: 8 * MESSAGES if layout.world_size > layout.tensor_parallel else 0}
    network = sum(_collective_seconds(name, sent[name], calls[name], figures, layout) for name in sent)
    return Seconds(
        taken.products, taken.memory, taken.launches + slower * engine, taken.network + network, figures.runs_ahead
    )


def update_kind(zero_stage: int) -> str:
    """The kind of operator that stands for the engine's reading and writing at a ZeRO stage."""
    return f"update at ZeRO {zero_stage}"


def update_of(sizes: Sizes, parameters: Collection[PlannedParameter], choice: Choice) -> Counter[Operator]:
    """What the engine reads and writes in a step beside the passes: gradients on their way, and the update.

    As memory_and_traffic.py describes it; b bytes of a parameter, T elements that train, S those of a rank's share.
    """
    b, stage, micro_batches = sizes.width, sizes.zero_stage, sizes.accumulation
    trained = sum(parameter.numel for parameter in parameters if parameter.trains)
    share = trained if stage == 0 else -(-trained // sizes.world_size)
    found: Counter[Operator] = Counter()

    def add(count: int, size: float) -> None:
        if size and count:
            found[Operator(update_kind(stage), sizes.precision, 0, size, size)] += count

    add(1, ADAMW_BYTES * share)
    if b == 2:
        add(2, 6 * share)  # gradients to fp32, weights back from it
    if sizes.accumulates_in_place:
        add(micro_batches, (b + 8) * trained)
    elif stage:
        add(micro_batches, 2 * b * trained)  # into the bucket
        add(1, 2 * b * share)  # out of it
    if sizes.world_size > 1:
        reductions = micro_batches if stage >= 2 else 1
        add(2 * reductions, 2 * b * trained)  # a copy for the sum, which is divided by the ranks
        if stage:
            add(1, 2 * b * trained)  # the weights of all shares, put in place
    if stage == 3:
        gathered = sum(parameter.numel for parameter in parameters if not is_whole(parameter, sizes, choice))
        add(micro_batches, 2 * b * gathered)
    return found


def _curve(kinds: Mapping[str, Sequence[Sequence[float]]], operator: Operator) -> Sequence[Sequence[float]]:
    """The curve of the operator's kind, else of the nearest: with dropout or without, products, copies."""
    plain = operator.kind.removesuffix(DROPS)
    for kind in (operator.kind, plain, plain + DROPS, PRODUCT if operator.flops else COPY):
        if kind in kinds:
            return kinds[kind]
    raise AssertionError("figures have products and copies")


def _calls(name: str, sizes: Sizes, trained: Collection[int]) -> int:
    """How often a collective is called in a step: once for each bucket, at stage 3 for each tensor."""
    buckets = sizes.accumulation if sizes.zero_stage >= 2 else 1
    if sizes.zero_stage == 3:
        return buckets * len(trained)
    return (buckets if name == "all-reduce" else 1) * max(1, -(-sum(trained) // BUCKET))


def _collective_seconds(name: str, sent: int, calls: int, figures: Figures, layout: Layout) -> float:
    if not sent:
        return 0.0
    bandwidths, hops = [], 0.0
    if layout.replicas_per_node > 1:
        link = _known(figures.link(layout.ranks_of_a_node), "within a node")
        bandwidths.append(link.bandwidth)
        hops += link.latency * math.ceil(math.log2(layout.replicas_per_node))
    if layout.nodes > 1 and name != IN_NODE:
        link = _known(figures.between_nodes, "between nodes")
        # All ranks of a node are in one ring, which enters it once, or in one for each part of a replica.
        bandwidths.append(link.bandwidth / min(layout.tensor_parallel, layout.ranks_per_node))
        hops += link.latency * math.ceil(math.log2(layout.nodes))
    there_and_back = 2 if name in ("all-reduce", CONTROL) else 1
    return sent / min(bandwidths) + calls * there_and_back * hops


def _exchange_seconds(operator: Operator, figures: Figures, layout: Layout) -> float:
    """Seconds of an exchange between the ranks of a replica, which are neighbours; some may be on two nodes."""
    if layout.nodes == 1 or layout.ranks_per_node % layout.tensor_parallel == 0:
        link = _known(figures.link(layout.ranks_of_a_node), "within a node")
    else:
        link = _known(figures.between_nodes, "between nodes")
    there_and_back = 2 if operator.kind == ALL_REDUCE else 1
    hops = there_and_back * math.ceil(math.log2(layout.tensor_parallel))
    return operator.bytes / link.bandwidth + hops * link.latency


def _known(link: Link | None, where: str) -> Link:
    if link is None:
        raise UserError(f"--device: its figures have no link {where}; add `in_node` and `between_nodes` to the file")
    return link
