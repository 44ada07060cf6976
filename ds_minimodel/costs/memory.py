"""Devices to plan for, and formulas for the bytes that a training step needs on each and sends over
the network.

What DeepSpeed 0.19 does with a partition (training/partition.py, which has the symbols) is what
they describe; its constants are in training/zero/config.py, and tests/training/test_costs.py holds
both against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.training.zero.config import BUCKET, accumulates_in_place

if TYPE_CHECKING:
    from ds_minimodel.training.partition import Partition


class Device(NamedTuple):
    """A device to plan for: a GPU by its data sheet, an entry of GPUS, or this machine's CPUs.

    type: "cpu" or "cuda". memory: bytes for training; of CPUs the machine's, which its ranks share.
    precisions: what a GPU has, first what `auto` means there.
    """

    name: str
    type: str
    memory: int
    precisions: tuple[str, ...] = ()

    def memory_of_rank(self, ranks: int) -> int:
        """Bytes that one of so many ranks has."""
        return self.memory // ranks if self.type == "cpu" else self.memory

    def resolve(self, precision: str) -> str:
        """The precision that a recipe's setting means here; UserError for one that the device does
        not have.
        """
        if self.type == "cpu":
            import torch

            from ds_minimodel.ops.precision import resolve_precision

            return resolve_precision(precision, torch.device("cpu"))
        precision = self.precisions[0] if precision == "auto" else precision
        if precision not in self.precisions:
            raise UserError(
                f"engine.precision {precision}: {self.name} has {', '.join(self.precisions)} alone"
            )
        return precision


_OLD, _NEW = ("fp16", "fp32"), ("bf16", "fp16", "fp32")
# A data sheet's GB are 10^9 bytes here, so that the CUDA context finds room, too.
GPUS = {
    device.name: device
    for device in (
        Device("v100-16g", "cuda", 16 * 10**9, _OLD),
        Device("v100-32g", "cuda", 32 * 10**9, _OLD),
        Device("a100-80g", "cuda", 80 * 10**9, _NEW),
        Device("h100-80g", "cuda", 80 * 10**9, _NEW),
        Device("h200-141g", "cuda", 141 * 10**9, _NEW),
    )
}
NAMES = (*GPUS, "cpu")


def device_named(name: str) -> Device:
    """The Device of that name, "cpu" for this machine's CPUs; UserError for another."""
    if name == "cpu":
        from ds_minimodel.training.partition import (
            machine_memory,  # with torch, which the command line does without
        )

        return Device(name, name, machine_memory())
    if name not in GPUS:
        raise UserError(f"--device {name}: unknown; there are {', '.join(NAMES)}")
    return GPUS[name]


PROCESS = (
    300 * 10**6
)  # bytes of host memory of a rank, beyond a process that has loaded torch and DeepSpeed


@dataclass(frozen=True)
class Memory:
    """Bytes on one device in a step, by kind.

    optimizer: fp32 copies of the weights and Adam's two moments. activations: what one micro-batch
    keeps for its backward pass. buffers: all else: gradients in transit, gathered weights,
    temporary values. total: at the fullest moment; less than the sum where gradients come as
    activations go. host: in the host's memory; on CPUs of what is offloaded alone, which is in the
    total too.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    total: int
    host: int


def memory_of_step(partition: Partition, activations: int, peak: int) -> Memory:
    """Peak memory of a step: in the passes of the last micro-batch, in the reduction of its
    gradients or in the update.

    activations, peak: of one traced micro-batch (tracing.py), in which gradients leave their
    parameters as soon as they are whole, but for stage 0 without accumulation.
    """
    setup, trained = partition.setup, partition.trained
    b, stage, share = setup.width, setup.zero_stage, setup.share(sum(trained))
    accumulates = setup.split.accumulation > 1
    weights, gradients, optimizer = held(partition)
    in_place = accumulates_in_place(setup.precision, stage, setup.split.accumulation)
    bucket = b * partition.bucket if stage > 0 and not in_place else 0
    in_flight = 0  # a bucket's copy that is summed during the passes, while another fills
    if setup.zero.overlaps and stage in (1, 2):
        in_flight = bucket if bucket < b * sum(trained) else 0
        bucket *= 2
    if setup.offloads_optimizer and stage == 2:
        bucket += b * max(trained)  # where sums of gradients come back to

    # Held during the passes: gradients of earlier micro-batches, the bucket and gathered weights.
    earlier = gradients if in_place or accumulates or stage == 3 else 0
    passes = peak + earlier + bucket + in_flight + _gathered(partition)
    # Buckets are summed over ranks in a copy (not by one rank at stage 0); then Adam is given fp32
    # copies.
    if stage == 0:
        reduction = gradients if setup.replicas == 1 else 2 * gradients
        update = gradients + (4 * sum(trained) if b == 2 else 0)
    elif in_place:
        reduction, update = gradients + b * sum(trained), gradients
    elif stage == 2 and accumulates:
        reduction = (
            gradients + 2 * bucket + (4 * max(trained) if setup.accumulates_in_fp32 else gradients)
        )
        update = gradients + (b + 4) * share
    else:
        reduction = 2 * bucket
        update = gradients * (stage == 3) + bucket + (b + 4) * share
    fullest = max(passes, reduction, update)
    buffers = max(0, fullest - activations - gradients)
    total = weights + optimizer + fullest
    return Memory(
        weights, gradients, optimizer, activations, buffers, total, _host_bytes(partition)
    )


def held(partition: Partition) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer state on one device between steps; 12 of state for
    what trains.

    From stage 1 on a share of the state, from stage 2 on of the gradients; at stage 0 in fp32 the
    copy is the weight.
    """
    setup, trained = partition.setup, sum(partition.trained)
    b, stage, share = setup.width, setup.zero_stage, sum(map(setup.share, partition.trained))
    whole = sum(parameter.numel for parameter in partition.parameters) - sum(partition.partitioned)
    weights = b * (whole + sum(map(setup.share, partition.partitioned)))
    if setup.offloads_optimizer:
        return weights, 0, 0
    sums = 4 if setup.accumulates_in_fp32 else 0
    gradients = (sums or b) * share if stage >= 2 else (b + sums) * trained
    return (
        weights,
        gradients,
        12 * share if stage else (8 if setup.precision == "fp32" else 12) * trained,
    )


def _gathered(partition: Partition) -> int:
    """Bytes of the weights that stage 3 has gathered, and of the flat copy that they arrive in."""
    setup, partitioned = partition.setup, partition.partitioned
    largest = max(partitioned, default=0)
    arriving = min(sum(partitioned), max(setup.zero.prefetch or BUCKET, largest))
    return setup.width * (min(sum(partitioned), BUCKET + largest) + arriving)


def _host_bytes(partition: Partition) -> int:
    """Bytes of one rank's offloaded optimizer state in the host's memory.

    With it go a gradient in fp32, the sums of earlier micro-batches, and at stage 2 the new weights
    and a buffer as large as the largest parameter.
    """
    setup, trained = partition.setup, partition.trained
    if not setup.offloads_optimizer:
        return 0
    share, kept = setup.share(sum(trained)), 4 if setup.accumulates_in_fp32 else setup.width
    sums = kept * share if setup.split.accumulation > 1 or setup.zero_stage == 3 else 0
    new_weights = setup.width * (share + max(trained)) if setup.zero_stage == 2 else 0
    return 16 * share + sums + new_weights


def traffic_of_step(partition: Partition) -> dict[str, int]:
    """{collective: bytes that each rank sends in one step}.

    By the ring algorithm, for n bytes: all-reduce 2 n (W-1)/W, all-gather and reduce-scatter n
    (W-1)/W.
    """
    setup, shards, times = (
        partition.setup,
        partition.setup.replicas,
        partition.setup.split.accumulation,
    )
    trained = sum(partition.trained)
    if setup.zero_stage < 3:
        reductions = (
            times if setup.zero_stage == 2 else 1
        )  # stage 2 keeps only its share, so it reduces each time
        sent = {"all-reduce": reductions * ring(setup.width * trained, shards, "all-reduce")}
        if setup.zero_stage:
            sent["all-gather"] = ring(
                setup.width * shards * setup.share(trained), shards, "all-gather"
            )
        return sent
    gathered, reduced = (
        setup.width * shards * sum(map(setup.share, counts))
        for counts in (partition.partitioned, partition.trained)
    )
    passes = (
        1 if sum(partition.partitioned) <= BUCKET else 2
    )  # so few stay gathered for the backward pass
    return {
        "all-gather": ring(times * passes * gathered, shards, "all-gather"),
        "reduce-scatter": ring(times * reduced, shards, "reduce-scatter"),
    }


def ring(size: int, ranks: int, collective: str) -> int:
    """Bytes that each of `ranks` sends in a ring collective over tensors of `size` bytes."""
    return (2 if collective == "all-reduce" else 1) * size * (ranks - 1) // ranks
