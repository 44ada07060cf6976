"""Seconds of a step, from its operators, its traffic and what was measured of a device.

An operator takes its work by the device's rate for its kind and size; a product no less than its bytes take. An update
reads and writes what its stage holds. A collective takes what each rank sends by the slowest link on its way,
and a message's latency for each hop of a tree. Of a device that was not measured only the peak is known: a step takes
at least its products at that rate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.partition import Partition, Setup
from ds_minimodel.engine.zero.config import BUCKET
from ds_minimodel.planning.devices import Device, Link, Measured, rate_at
from ds_minimodel.planning.tracing import ALL_GATHER, ALL_REDUCE, COPY, PRODUCT, VIEW, Operator

CONTROL, MESSAGES = "control", 3  # all-reduces of a number: loss terms, overflow, norm of the gradients
ADAMW_BYTES = 28  # of an element: gradient, weight and two moments read, all but the first written; fp32


@dataclass(frozen=True)
class StepTime:
    """Seconds of an optimizer step by what takes them.

    products: multiplications of matrices. memory: reading and writing. launches: the host's work for each operator and
    in the engine. network: collectives. runs_ahead: the host does not wait for the device, so that the slower of the
    two counts, not the sum.
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
        parts = asdict(self)
        if parts.pop("runs_ahead"):
            hidden = ("launches",) if self.products + self.memory > self.launches else ("products", "memory")
            parts = {name: seconds for name, seconds in parts.items() if name not in hidden}
        return max(parts, key=lambda name: parts[name])

    def record(self) -> dict[str, Any]:
        """The seconds as JSON."""
        return {**asdict(self), "bound": self.bound}


def flops_of(operators: Mapping[Operator, int]) -> float:
    """FLOPs of the operators, products and attention."""
    return sum(operator.flops * count for operator, count in operators.items())


def least_seconds(operators: Mapping[Operator, int], setup: Setup, device: Device) -> float:
    """Seconds that the products of a step take at the data sheet's peak; it takes longer."""
    return setup.split.accumulation * flops_of(operators) / device.peaks[setup.precision]


def seconds_of_step(
    operators: Mapping[Operator, int], partition: Partition, traffic: Mapping[str, int], device: Device
) -> StepTime:
    """Seconds of an optimizer step on a device that was measured. operators: of one micro-batch.

    UserError where no link is known between ranks that exchange something.
    """
    setup, measured, nodes = partition.setup, device.measured, _Nodes(partition.setup)
    assert measured is not None
    accumulation, trained = setup.split.accumulation, partition.trained
    products = memory = launches = network = 0.0
    whole = Counter({operator: count * accumulation for operator, count in operators.items()})
    for operator, count in (whole + update_of(partition)).items():
        launches += count * measured.launch
        if operator.kind in (ALL_REDUCE, ALL_GATHER):
            network += count * nodes.exchange(operator, measured)
        elif operator.kind != VIEW:
            kinds = measured.rates.get(operator.precision, measured.rates[setup.precision])
            curve = kinds.get(operator.kind, kinds[PRODUCT if operator.flops else COPY])
            worked = operator.work / rate_at(curve, operator.size)
            moved = operator.bytes / rate_at(kinds[COPY], operator.bytes)
            if operator.flops and worked >= moved:
                products += count * worked
            else:
                memory += count * (moved if operator.flops else worked)
    overhead = measured.overheads[setup.precision][setup.zero_stage]
    launches += overhead.step + overhead.tensor * len(trained) * accumulation
    calls = {name: _calls(name, setup, trained) for name in traffic} | {CONTROL: MESSAGES}
    sent = {**traffic, CONTROL: 8 * MESSAGES if setup.replicas > 1 else 0}
    network += sum(nodes.collective(name, sent[name], calls[name], measured) for name in sent)
    # Beyond the most ranks that were measured each takes its turn.
    most = measured.slowdown[-1][0]
    slower = rate_at(measured.slowdown, nodes.ranks) * (max(1.0, nodes.ranks / most) if device.shared else 1.0)
    return StepTime(slower * products, slower * memory, slower * launches, network, device.type == "cuda")


def update_kind(zero_stage: int) -> str:
    """The kind of operator that stands for the engine's reading and writing at a ZeRO stage."""
    return f"update at ZeRO {zero_stage}"


def update_of(partition: Partition) -> Counter[Operator]:
    """What the engine reads and writes in a step beside the passes: gradients on their way, and the update.

    As memory.py describes it; b bytes of a parameter, T elements that train, S those of a rank's share.
    """
    setup, trained = partition.setup, sum(partition.trained)
    b, stage, micro_batches = setup.width, setup.zero_stage, setup.split.accumulation
    share = trained if stage == 0 else setup.share(trained)
    found: Counter[Operator] = Counter()

    def add(count: int, size: float) -> None:
        if size and count:
            found[Operator(update_kind(stage), setup.precision, 0, size, size)] += count

    add(1, ADAMW_BYTES * share)
    if b == 2:
        add(2, 6 * share)  # gradients to fp32, weights back from it
    if setup.accumulates_in_place:
        add(micro_batches, (b + 8) * trained)
    elif stage:
        add(micro_batches, 2 * b * trained)  # into the bucket
        add(1, 2 * b * share)  # out of it
    if setup.replicas > 1:
        reductions = micro_batches if stage >= 2 else 1
        add(2 * reductions, 2 * b * trained)  # a copy for the sum, which is divided by the ranks
        if stage:
            add(1, 2 * b * trained)  # the weights of all shares, put in place
    if stage == 3:
        add(micro_batches, 2 * b * sum(partition.partitioned))
    return found


def _calls(name: str, setup: Setup, trained: list[int]) -> int:
    """How often a collective is called in a step: once for each bucket, at stage 3 for each tensor."""
    reductions = setup.split.accumulation if setup.zero_stage >= 2 else 1
    if setup.zero_stage == 3:
        return reductions * len(trained)
    return (reductions if name == "all-reduce" else 1) * max(1, -(-sum(trained) // BUCKET))


class _Nodes:
    """The nodes that the ranks of a run are on. ranks: of a whole node, or of the only one, which may have fewer."""

    def __init__(self, setup: Setup):
        self.setup, self.ranks = setup, min(setup.ranks_per_node, setup.ranks)
        self.number = -(-setup.ranks // setup.ranks_per_node)

    def collective(self, name: str, sent: int, calls: int, measured: Measured) -> float:
        """Seconds of all collectives of a name, of which each rank sends `sent` bytes in all."""
        if not sent:
            return 0.0
        bandwidths, hops = [], 0.0
        replicas = max(1, self.ranks // self.setup.tensor_parallel)
        if replicas > 1:
            link = _known(measured.in_node, "within a node")
            bandwidths.append(link.bandwidth)
            hops += link.latency * math.ceil(math.log2(replicas))
        if self.number > 1:
            link = _known(measured.between_nodes, "between nodes")
            # All ranks of a node are in one ring, which enters it once, or in one for each part of a replica.
            bandwidths.append(link.bandwidth / min(self.setup.tensor_parallel, self.setup.ranks_per_node))
            hops += link.latency * math.ceil(math.log2(self.number))
        there_and_back = 2 if name in ("all-reduce", CONTROL) else 1
        return sent / min(bandwidths) + calls * there_and_back * hops

    def exchange(self, operator: Operator, measured: Measured) -> float:
        """Seconds of an exchange between the ranks of a replica, which are neighbours; some may be on two nodes."""
        if self.number == 1 or self.setup.ranks_per_node % self.setup.tensor_parallel == 0:
            link = _known(measured.in_node, "within a node")
        else:
            link = _known(measured.between_nodes, "between nodes")
        there_and_back = 2 if operator.kind == ALL_REDUCE else 1
        hops = there_and_back * math.ceil(math.log2(self.setup.tensor_parallel))
        return operator.bytes / link.bandwidth + hops * link.latency


def _known(link: Link | None, where: str) -> Link:
    if link is None:
        raise UserError(f"--device: the file has no link {where}; add `in_node` and `between_nodes` to `measured`")
    return link
