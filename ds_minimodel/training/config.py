"""What a recipe says of training: of a run on text, the optimizer, the engine and checkpoints."""

from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from ds_minimodel.common.config import (
    DECIDES_NOTHING,
    DECIDES_ROUNDING,
    Few,
    Length,
    NonNegativeInt,
    PositiveInt,
    Probability,
    Section,
    Size,
)
from ds_minimodel.training.zero.deepspeed_file import DeepSpeedFile, read_named_file

# Share of the steps that are warm-up by default.
WARM_UP = 0.08


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to the peak rate, then linear decay to 0 at the last step.

    For another form (a cosine) change `lr_at`; nothing else knows it. So no record names the form
    either: a run that is under way would go on by the new one.

    Attributes:
        steps: optimizer steps of the run.
        lr: peak learning rate.
        warmup_steps: steps until the peak is reached.
        decay_steps: the rate stays there until so many steps are left; 0: it falls from the warm-up
            on.
    """

    steps: int
    lr: float
    warmup_steps: int = 0
    decay_steps: int = 0

    @property
    def stable_steps(self) -> int:
        """Steps before the decay, which a longer run repeats exactly; 0 without a stable phase."""
        return self.steps - self.decay_steps if self.decay_steps else 0

    def lr_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if step < self.stable_steps:
            return self.lr
        falling = self.decay_steps or self.steps - self.warmup_steps
        return self.lr * (self.steps - step) / max(1, falling)


class Training(Section):
    """One training run on text; the objective has further keys (models/objectives/)."""

    steps: PositiveInt = 125_000
    """Optimizer steps."""
    batch_size: Size = 2048
    """Sequences of a step, over all ranks."""
    seq_length: Length = 512
    """Tokens of a sequence."""
    lr: PositiveFloat = 7e-4
    """Peak learning rate."""
    warmup_steps: NonNegativeInt | None = None
    """Steps in which the rate rises. Default: 8 %."""

    @model_validator(mode="after")
    def _schedule_fits(self) -> Self:
        if self.decay_steps and self.warmup_steps is None:
            raise ValueError(
                "schedule wsd: give warmup_steps; a share of the steps would grow with them"
            )
        if self.steps and self.warmup + max(1, self.decay_steps) > self.steps:
            decay = f" and a decay of {self.decay_steps} steps" if self.decay_steps else ""
            raise ValueError(
                f"warmup_steps {self.warmup}{decay} do not fit into steps {self.steps}"
            )
        return self

    @property
    def decay_steps(self) -> int:
        """Steps in which a rate falls that stays until then; 0: it falls from the warm-up on."""
        return 0

    @property
    def lr_schedule(self) -> Schedule:
        """The learning rates of its steps."""
        return Schedule(self.steps, self.lr, self.warmup, self.decay_steps)

    @property
    def warmup(self) -> int:
        """Steps of warm-up."""
        return round(WARM_UP * self.steps) if self.warmup_steps is None else self.warmup_steps


class AdamWConfig(Section):
    """AdamW's hyperparameters but for the learning rate; the defaults are the paper's."""

    weight_decay: NonNegativeFloat = 0.01
    """AdamW's weight decay."""
    betas: Annotated[tuple[Probability, Probability], Field(strict=False)] = (0.9, 0.98)
    """Decay of AdamW's moments."""
    eps: PositiveFloat = 1e-6
    """AdamW's epsilon."""
    clip: NonNegativeFloat = 0.0
    """Largest norm of the gradient. 0: no clipping."""


class Engine(Section):
    """How a run is computed: DeepSpeed's ZeRO, precision and parallelism."""

    zero_stage: Annotated[Literal[0, 1, 2, 3], DECIDES_ROUNDING] = 1
    """DeepSpeed's ZeRO stage."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """`auto`: bf16 where fast, fp16 on older GPUs, else fp32."""
    micro_batch_size: Annotated[Size, DECIDES_ROUNDING] = 32
    """Sequences of a rank in one pass. Divides the rank's share of a batch, or is larger."""
    deterministic: Annotated[bool, DECIDES_NOTHING] = False
    """The same bits in every run on a GPU."""
    recompute_layers: Annotated[bool, DECIDES_NOTHING] = False
    """Less memory, more work in the backward pass."""
    tensor_parallel: Annotated[Few, DECIDES_ROUNDING] = 1
    """Ranks that share a replica. Divides `num_heads` and `ffn_size`."""
    deepspeed: Annotated[
        DeepSpeedFile, BeforeValidator(read_named_file, json_schema_input_type=str | None)
    ] = DeepSpeedFile()
    """DeepSpeed JSON with further settings."""


class CheckpointPolicy(Section):
    """When a run's checkpoints are written, and which stay while it goes on."""

    every: PositiveInt = 1000
    """Optimizer steps between checkpoints."""
    keep_last: PositiveInt = 2
    """Checkpoints to keep."""

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is written after `step` steps."""
        return step % self.every == 0
