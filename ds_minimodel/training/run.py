"""The specification of one training run: all numbers that the loop needs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Schedule


@dataclass(frozen=True)
class Execution:
    """Precision, ZeRO stage and sizes of a run's batches.

    What is computed does not depend on them, but for rounding.

    Attributes:
        batch_size: samples of an optimizer step, over all ranks.
        micro_batch_size: largest number of samples of a rank in one forward pass.
        zero_stage: 0 to 3.
        precision: "fp32", "bf16" or "fp16"; a recipe's "auto" is resolved before
            (ops/precision.py).
    """

    batch_size: int
    micro_batch_size: int = 32
    zero_stage: int = 1
    precision: str = "fp32"

    def split(self, replicas: int) -> "Split":
        """Return `split_batch` at these sizes."""
        return split_batch(self.batch_size, self.micro_batch_size, replicas)


class Split(NamedTuple):
    """One rank's share of a step: samples of a micro-batch, and how many micro-batches."""

    micro: int
    accumulation: int


def split_batch(batch_size: int, micro_batch_size: int, replicas: int) -> Split:
    """Divide a batch among ranks and forward passes.

    Args:
        batch_size: samples of a step.
        micro_batch_size: largest number of samples of a rank in one forward pass.
        replicas: ranks among which samples are divided (World.data).

    Raises:
        UserError: it cannot be divided into equal parts.
    """
    if batch_size % replicas:
        raise UserError(
            f"batch_size {batch_size} cannot be divided among {replicas} ranks; choose a multiple "
            f"of {replicas} or another number of ranks"
        )
    per_rank = batch_size // replicas
    micro = min(micro_batch_size, per_rank)
    if per_rank % micro:
        raise UserError(
            f"engine.micro_batch_size {micro} does not divide the {per_rank} samples that each of "
            f"{replicas} ranks has a step (batch_size {batch_size}); choose a divisor"
        )
    return Split(micro, per_rank // micro)


def fill_batch(batch_size: int, micro_batch_size: int, replicas: int) -> tuple[int, int]:
    """Find the fewest slots that hold a batch and that all ranks share equally.

    Slots beyond the batch are for fillers without a loss.

    Args:
        batch_size: samples of a step.
        micro_batch_size: largest number of samples of a rank in one forward pass.
        replicas: ranks among which samples are divided.

    Returns:
        (slots >= batch_size, samples of a micro-batch), which split_batch divides.
    """
    per_rank = -(-batch_size // replicas)
    accumulation = -(-per_rank // micro_batch_size)
    micro = -(-per_rank // accumulation)
    return micro * accumulation * replicas, micro


def replicas_of(ranks: int, tensor_parallel: int) -> int:
    """Return the number of replicas that `ranks` ranks hold.

    Raises:
        UserError: `tensor_parallel`, the ranks of a replica, does not divide them.
    """
    if ranks % tensor_parallel:
        raise UserError(
            f"engine.tensor_parallel: {tensor_parallel} ranks to a replica do not divide {ranks} "
            f"in all; give --ranks a multiple of {tensor_parallel}, or choose another "
            "engine.tensor_parallel"
        )
    return ranks // tensor_parallel


@dataclass(frozen=True)
class Accounting:
    """Tokens and FLOPs of a run's steps, for rates and costs in metrics.

    Training does not depend on them.

    Attributes:
        tokens_per_step: tokens of a step, over all ranks.
        formula_flops: FLOPs of a step by the paper's formula.
        executed_flops: FLOPs of a step as it is executed.
    """

    tokens_per_step: int
    formula_flops: float = 0.0
    executed_flops: float = 0.0

    def eflops_until(self, step: int) -> float:
        """Return the EFLOPs of the first `step` steps by the paper's formula, for artifacts."""
        return step * self.formula_flops / 1e18


@dataclass(frozen=True)
class Run:
    """One training run: schedule, optimizer, execution, and what is kept and counted.

    Attributes:
        schedule: learning rate of each step.
        execution: precision, ZeRO stage and sizes of batches.
        accounting: tokens and FLOPs of a step.
        optimizer: AdamW's hyperparameters.
        checkpoints: when they are written, and which stay.
        deepspeed: settings of the DeepSpeed JSON that the recipe names (training/zero/config.py).
        deepspeed_file: path of that JSON.
    """

    schedule: Schedule
    execution: Execution
    accounting: Accounting
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    deepspeed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    deepspeed_file: str = ""

    def record(self) -> dict[str, object]:
        """Return all numbers under the flat names that `run.json` has for them."""
        record = {
            **asdict(self.schedule),
            **asdict(self.execution),
            **self.optimizer.model_dump(),
            "checkpoint_every": self.checkpoints.every,
            "keep_last": self.checkpoints.keep_last,
            **asdict(self.accounting),
        }
        if self.deepspeed:
            record["deepspeed_config"] = self.deepspeed
        return record
