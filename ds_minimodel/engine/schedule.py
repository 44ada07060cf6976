"""The learning-rate schedule of a run. For another form (a cosine, a plateau) change `lr_at`; nothing else knows it.

So no record names the form either: a run that is under way would go on by the new one.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up to the peak rate, then linear decay to 0 at the last step.

    steps: optimizer steps of the run. lr: peak learning rate. warmup_steps: steps until it is reached.
    """

    steps: int
    lr: float
    warmup_steps: int = 0

    def lr_at(self, step: int) -> float:
        """Learning rate of optimizer step `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        return self.lr * (self.steps - step) / max(1, self.steps - self.warmup_steps)
