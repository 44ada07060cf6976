"""The specification of one training run, resolved: all numbers that the loop needs, each part owned by its reader."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ds_minimodel.engine.checkpoints.storage import CheckpointPolicy
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.schedule import Schedule

Phases = tuple[tuple[int, float, float], ...]  # (steps, FLOPs of one by formula, as executed) each


@dataclass(frozen=True)
class Optimizer:
    """AdamW's hyperparameters but for the learning rate; the defaults are the paper's.

    weight_decay: decoupled, on all parameters. clip: largest norm of the gradients; 0: they are not clipped.
    """

    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6
    clip: float = 0.0


@dataclass(frozen=True)
class Accounting:
    """Tokens and FLOPs of a run's steps, for rates and costs in metrics; training does not depend on them.

    tokens_per_step: over all ranks. phases: (steps, FLOPs of one step by the paper's formula, and as executed) for
    each stretch of steps that cost the same; batches of one phase have the same form.
    """

    tokens_per_step: int
    phases: Phases

    def flops_until(self, step: int) -> tuple[float, float]:
        """(formula, executed) FLOPs of the first `step` steps."""
        formula = executed = 0.0
        for steps, formula_per_step, executed_per_step in self.phases:
            taken = min(step, steps)
            formula, executed = formula + taken * formula_per_step, executed + taken * executed_per_step
            step -= taken
        return formula, executed

    def eflops_until(self, step: int) -> float:
        """EFLOPs of the first `step` steps by the paper's formula, as artifacts record them."""
        return self.flops_until(step)[0] / 1e18


@dataclass(frozen=True)
class Run:
    """One training run: schedule, optimizer, execution, and what is kept and counted.

    deepspeed, deepspeed_file: the settings of the DeepSpeed JSON that the recipe names (engine/zero/config.py), and its
    path.
    """

    schedule: Schedule
    execution: Execution
    accounting: Accounting
    optimizer: Optimizer = field(default_factory=Optimizer)
    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    deepspeed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    deepspeed_file: str = ""

    def record(self) -> dict[str, object]:
        """All numbers under the flat names that `run.json` has for them."""
        schedule, execution, kept = self.schedule, self.execution, self.checkpoints
        return {
            "steps": schedule.steps,
            "batch_size": execution.batch_size,
            "lr": schedule.lr,
            "warmup_steps": schedule.warmup_steps,
            **asdict(self.optimizer),
            "zero_stage": execution.zero_stage,
            "precision": execution.precision,
            "micro_batch_size": execution.micro_batch_size,
            "checkpoint_every": kept.every,
            "keep_last": kept.keep_last,
            "keep_every": kept.keep_every,
            **asdict(self.accounting),
            **({"deepspeed_config": self.deepspeed} if self.deepspeed else {}),
        }
