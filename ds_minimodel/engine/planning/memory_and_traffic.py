"""Formulas for the bytes that a training step needs on each device and sends over the network.

Symbols: W ranks, A micro-batches a step, b bytes of a parameter (4 in fp32, else 2), T elements that train,
P elements that stage 3 partitions. Partitions are padded to equal lengths, which is counted. What DeepSpeed
0.19 does is what the formulas describe (its constants: zero/config.py); tests/engine/test_costs.py holds them
against it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ds_minimodel.engine.execution import split_batch
from ds_minimodel.engine.planning.trace import TRAINABLE, Trace
from ds_minimodel.engine.zero.config import (
    BUCKET,
    KEPT_LIVE,
    OFFLOAD_STAGES,
    ZeroMemory,
    accumulates_in_fp32,
    accumulates_in_place,
)
from ds_minimodel.ops.precision import DTYPES

_NO_FILE = ZeroMemory()
IN_NODE = "all-gather in a node"


class Sizes(NamedTuple):
    """Sizes of the run and of the ranks that a plan is made for.

    device_memory: bytes that one rank has. zero: of the recipe's DeepSpeed JSON.
    """

    zero_stage: int
    precision: str
    batch_size: int
    micro_batch_size: int
    world_size: int
    ranks_per_node: int
    device_memory: int
    zero: ZeroMemory = _NO_FILE

    @property
    def micro(self) -> int:
        return split_batch(self.batch_size, self.micro_batch_size, self.world_size)[0]

    @property
    def accumulation(self) -> int:
        return split_batch(self.batch_size, self.micro_batch_size, self.world_size)[1]

    @property
    def width(self) -> int:
        """b: bytes of an element of a parameter, and of its gradient as it is computed."""
        return DTYPES[self.precision].itemsize

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer state and gradients lie in the host's memory."""
        return self.zero.offloads_optimizer and self.zero_stage in OFFLOAD_STAGES["offload_optimizer"]

    @property
    def offloads_parameters(self) -> bool:
        """Whether partitions of weights lie in the host's memory."""
        return self.zero.offloads_parameters and self.zero_stage in OFFLOAD_STAGES["offload_param"]

    @property
    def accumulates_in_fp32(self) -> bool:
        return accumulates_in_fp32(self.precision, self.zero_stage, self.accumulation)

    @property
    def accumulates_in_place(self) -> bool:
        return accumulates_in_place(self.precision, self.zero_stage, self.accumulation)


class Choice(NamedTuple):
    """Placement of weights at stage 3.

    replicated: names of frozen parameters that stay whole on each rank. node_copy: ranks that hold another copy of
    what is partitioned between them (hpZ), so that only the first micro-batch of a step gathers from other nodes;
    1: there is none.
    """

    replicated: frozenset[str] = frozenset()
    node_copy: int = 1


class PlannedParameter(NamedTuple):
    """A parameter: its name, its kind (trace.py) and its size in elements."""

    name: str
    kind: str
    numel: int

    @property
    def trains(self) -> bool:
        return self.kind == TRAINABLE


@dataclass(frozen=True)
class Memory:
    """Bytes on one device in a step, by kind.

    optimizer: fp32 copies of the weights and Adam's two moments. activations: what one micro-batch keeps for
    its backward pass. buffers: all else: gradients in transit, gathered weights, temporary values. total: at the
    fullest moment; less than the sum where gradients come as activations go. host: in the host's memory, of what is
    offloaded; within total where the device is the CPU.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    total: int
    host: int = 0


def is_whole(parameter: PlannedParameter, sizes: Sizes, choice: Choice) -> bool:
    """Whether each rank holds all of a parameter between steps."""
    return sizes.zero_stage < 3 or parameter.name in choice.replicated


def weight_bytes(parameter: PlannedParameter, sizes: Sizes, choice: Choice) -> int:
    """Bytes of a parameter's weights on one device, with hpZ's copy; without padding at stages 1 and 2."""
    if is_whole(parameter, sizes, choice):
        return sizes.width * parameter.numel
    if sizes.offloads_parameters:
        return 0
    copy = _share(parameter.numel, choice.node_copy) if choice.node_copy > 1 else 0
    return sizes.width * (_share(parameter.numel, sizes.world_size) + copy)


def optimizer_bytes(parameter: PlannedParameter, sizes: Sizes) -> int:
    """Bytes of a parameter's optimizer state on one device: fp32 copy and two moments, 12 for an element that trains.

    From stage 1 on a share of them; at stage 0 in fp32 the copy is the weight itself.
    """
    if not parameter.trains or sizes.offloads_optimizer:
        return 0
    if sizes.zero_stage == 0:
        return (8 if sizes.precision == "fp32" else 12) * parameter.numel
    return 12 * _share(parameter.numel, sizes.world_size)


def gradient_bytes(parameter: PlannedParameter, sizes: Sizes) -> int:
    """Bytes of a parameter's gradient through the backward pass; from stage 2 on of the part that a rank keeps."""
    if not parameter.trains or sizes.offloads_optimizer:
        return 0
    kept = 4 if sizes.accumulates_in_fp32 else sizes.width
    if sizes.zero_stage >= 2:
        return kept * _share(parameter.numel, sizes.world_size)
    return (sizes.width + (4 if sizes.accumulates_in_fp32 else 0)) * parameter.numel


def host_bytes(sizes: Sizes, parameters: Collection[PlannedParameter], choice: Choice) -> int:
    """Bytes of one rank's offloaded state in the host's memory.

    With the optimizer's go a gradient in fp32, the sums of earlier micro-batches, and at stage 2 the new weights and a
    buffer as large as the largest parameter.
    """
    trained, host = [parameter.numel for parameter in parameters if parameter.trains], 0
    if sizes.offloads_optimizer:
        share, kept = _share(sum(trained), sizes.world_size), 4 if sizes.accumulates_in_fp32 else sizes.width
        host += 16 * share + (kept * share if sizes.accumulation > 1 or sizes.zero_stage == 3 else 0)
        host += sizes.width * (share + max(trained)) if sizes.zero_stage == 2 else 0
    if sizes.offloads_parameters:
        partitioned = [parameter.numel for parameter in parameters if not is_whole(parameter, sizes, choice)]
        host += sizes.width * sum(_share(numel, sizes.world_size) for numel in partitioned)
    return host


def bucket_elements(parameters: Collection[PlannedParameter], zero: ZeroMemory = _NO_FILE) -> int:
    """Elements of the buffer through which gradients are reduced: all that train, up to BUCKET; or as the file says.

    The largest parameter fits: DeepSpeed would allocate another buffer for one that does not.
    """
    if zero.bucket is not None:
        return zero.bucket
    counts = [parameter.numel for parameter in parameters if parameter.trains]
    return _even(max(max(counts), min(BUCKET, sum(counts))))


def memory_of_step(sizes: Sizes, parameters: Collection[PlannedParameter], traced: Trace, choice: Choice) -> Memory:
    """Peak memory of a step: in the passes of the last micro-batch, in the reduction of its gradients or in the update.

    traced: of one micro-batch, in which gradients leave their parameters as soon as they are
    whole, but for stage 0 without accumulation.
    """
    b, stage = sizes.width, sizes.zero_stage
    trained = [parameter.numel for parameter in parameters if parameter.trains]
    weights = sum(weight_bytes(parameter, sizes, choice) for parameter in parameters)
    optimizer = sum(optimizer_bytes(parameter, sizes) for parameter in parameters)
    gradients = sum(gradient_bytes(parameter, sizes) for parameter in parameters)
    share = _share(sum(trained), sizes.world_size)
    bucket = b * bucket_elements(parameters, sizes.zero) if stage > 0 and not sizes.accumulates_in_place else 0
    in_flight = 0  # a bucket's copy that is summed during the passes, while another fills
    if sizes.zero.overlaps and stage in (1, 2):
        in_flight = bucket if bucket < b * sum(trained) else 0
        bucket *= 2
    if sizes.offloads_optimizer and stage == 2:
        bucket += b * max(trained)  # where sums of gradients come back to

    # Held during the passes: gradients of earlier micro-batches, the bucket and gathered weights.
    if sizes.accumulates_in_place:
        earlier = gradients
    else:
        earlier = gradients if sizes.accumulation > 1 or stage == 3 else 0
    passes = traced.peak + earlier + bucket + in_flight + (_gathered(sizes, parameters, choice) if stage == 3 else 0)
    # Buckets are summed over ranks in a copy (not by one rank at stage 0); then Adam is given fp32 copies.
    if stage == 0:
        reduction = gradients if sizes.world_size == 1 else 2 * gradients
        update = gradients + (4 * sum(trained) if b == 2 else 0)
    elif sizes.accumulates_in_place:
        reduction, update = gradients + b * sum(trained), gradients
    elif stage == 2 and sizes.accumulation > 1:
        reduction = gradients + 2 * bucket + (4 * max(trained) if sizes.accumulates_in_fp32 else gradients)
        update = gradients + (b + 4) * share
    else:
        reduction = 2 * bucket
        update = gradients * (stage == 3) + bucket + (b + 4) * share
    fullest = max(passes, reduction, update)
    return Memory(
        weights,
        gradients,
        optimizer,
        traced.activations,
        max(0, fullest - traced.activations - gradients),
        weights + optimizer + fullest,
        host_bytes(sizes, parameters, choice),
    )


def _gathered(sizes: Sizes, parameters: Collection[PlannedParameter], choice: Choice) -> int:
    """Bytes of the weights that stage 3 has gathered, and of the flat copy that they arrive in."""
    partitioned = [parameter.numel for parameter in parameters if not is_whole(parameter, sizes, choice)]
    arriving = min(sum(partitioned), max(sizes.zero.prefetch or BUCKET, max(partitioned, default=0)))
    return sizes.width * (min(sum(partitioned), KEPT_LIVE) + arriving)


def traffic_of_step(sizes: Sizes, parameters: Collection[PlannedParameter], choice: Choice) -> dict[str, int]:
    """{collective: bytes that each rank sends in one step}.

    By the ring algorithm, for n bytes: all-reduce 2 n (W-1)/W, all-gather and reduce-scatter n (W-1)/W.
    """
    b, stage, shards, times = sizes.width, sizes.zero_stage, sizes.world_size, sizes.accumulation
    trained = b * sum(parameter.numel for parameter in parameters if parameter.trains)
    if stage < 3:
        reductions = times if stage == 2 else 1  # stage 2 keeps only its share, so it reduces each time
        sent = {"all-reduce": reductions * ring(trained, shards, "all-reduce")}
        if stage:
            padded = b * shards * _share(trained // b, shards)
            sent["all-gather"] = ring(padded, shards, "all-gather")
        return sent
    gathered = _padded_bytes([parameter for parameter in parameters if not is_whole(parameter, sizes, choice)], sizes)
    if choice.node_copy > 1:
        sent = {
            "all-gather": ring(gathered, shards, "all-gather"),
            IN_NODE: ring((times - 1) * gathered, choice.node_copy, "all-gather"),
        }
    else:
        sent = {"all-gather": ring(times * gathered, shards, "all-gather")}
    reduced = times * _padded_bytes([parameter for parameter in parameters if parameter.trains], sizes)
    sent["reduce-scatter"] = ring(reduced, shards, "reduce-scatter")
    return sent


def ring(size: int, ranks: int, collective: str) -> int:
    """Bytes that each of `ranks` sends in a ring collective over tensors of `size` bytes."""
    return (2 if collective == "all-reduce" else 1) * size * (ranks - 1) // ranks


def _padded_bytes(parameters: Collection[PlannedParameter], sizes: Sizes) -> int:
    return sizes.width * sum(sizes.world_size * _share(parameter.numel, sizes.world_size) for parameter in parameters)


def _share(numel: int, ranks: int) -> int:
    return -(-numel // ranks)


def _even(numel: int) -> int:
    return numel + numel % 2
