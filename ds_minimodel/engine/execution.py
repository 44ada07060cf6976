"""How a training step is executed: its precision, its ZeRO stage, and how a batch is divided among ranks."""

from dataclasses import dataclass
from typing import NamedTuple

from ds_minimodel.common.errors import UserError


@dataclass(frozen=True)
class Execution:
    """Precision, ZeRO stage and sizes of a run's batches; what is computed does not depend on them, but for rounding.

    batch_size: samples an optimizer step, over all ranks. micro_batch_size: at most this many samples a rank and a
    forward pass. zero_stage: 0 to 3. precision: "fp32", "bf16" or "fp16"; a recipe's "auto" is resolved before
    (ops/precision.py).
    """

    batch_size: int
    micro_batch_size: int = 32
    zero_stage: int = 1
    precision: str = "fp32"

    def __post_init__(self) -> None:
        assert self.precision != "auto", "'auto' is not resolved to a precision of this device"

    def split(self, world_size: int) -> "Split":
        """`split_batch` at these sizes."""
        return split_batch(self.batch_size, self.micro_batch_size, world_size)


class Split(NamedTuple):
    """One rank's share of a step: samples of a micro-batch, and how many micro-batches."""

    micro: int
    accumulation: int


def split_batch(batch_size: int, micro_batch_size: int, world_size: int) -> Split:
    """(samples a micro-batch, micro-batches a step) on each rank; UserError where the ranks do not divide.

    world_size: ranks among which samples are divided (World.data).
    """
    if batch_size % world_size:
        raise UserError(
            f"batch_size {batch_size} cannot be divided among {world_size} ranks; choose a multiple of "
            f"{world_size} or another number of ranks"
        )
    per_rank = batch_size // world_size
    micro = min(micro_batch_size, per_rank)
    if per_rank % micro:
        raise UserError(
            f"engine.micro_batch_size {micro} does not divide the {per_rank} samples that each of "
            f"{world_size} ranks has a step (batch_size {batch_size}); choose a divisor"
        )
    return Split(micro, per_rank // micro)


def fill_batch(batch_size: int, micro_batch_size: int, world_size: int) -> tuple[int, int]:
    """(slots, samples a micro-batch): the fewest slots that hold a batch and that every rank shares equally.

    slots >= batch_size, and split_batch(slots, samples a micro-batch, world_size) succeeds. Slots beyond the
    batch are for fillers without a loss.
    """
    per_rank = -(-batch_size // world_size)
    accumulation = -(-per_rank // micro_batch_size)
    micro = -(-per_rank // accumulation)
    return micro * accumulation * world_size, micro


def replicas_of(ranks: int, tensor_parallel: int) -> int:
    """Number of replicas that `ranks` ranks hold; UserError where `tensor_parallel` does not divide them."""
    if ranks % tensor_parallel:
        raise UserError(
            f"engine.tensor_parallel: {tensor_parallel} ranks to a replica do not divide {ranks} in all; "
            f"give --ranks a multiple of {tensor_parallel}, or choose another engine.tensor_parallel"
        )
    return ranks // tensor_parallel
