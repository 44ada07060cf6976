"""From a recipe's numbers to DeepSpeed's configuration. Nothing flows back."""

from dataclasses import dataclass

from ds_minimodel.common.errors import UserError

NEVER = 10**9


@dataclass(frozen=True)
class RunConfig:
    """One training run, resolved: all that the loop needs to know."""

    steps: int
    batch_size: int  # samples an optimizer step, over all ranks
    lr: float
    warmup_steps: int
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    clip: float
    zero_stage: int
    precision: str  # fp32, bf16 or fp16
    micro_batch_size: int  # at most this many samples a rank and a forward pass
    checkpoint_every: int
    keep_last: int
    keep_every: int | None  # checkpoints at multiples of so many steps are kept too
    tokens_per_step: int  # for the rates that metrics show
    # Cost of a step by the paper's formula and as executed, in FLOPs: (steps, formula, executed) for each phase.
    phases: tuple[tuple[int, float, float], ...]

    def flops_until(self, step):
        """(formula, executed) FLOPs of the first `step` steps."""
        formula = executed = 0.0
        for steps, formula_per_step, executed_per_step in self.phases:
            taken = min(step, steps)
            formula, executed = formula + taken * formula_per_step, executed + taken * executed_per_step
            step -= taken
        return formula, executed

    def lr_at(self, step):
        """Learning rate of optimizer step `step` (from 0): linear warm-up, then linear decay to 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        return self.lr * (self.steps - step) / max(1, self.steps - self.warmup_steps)


def split_batch(batch_size, micro_batch_size, world_size):
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
    return micro, per_rank // micro


def fill_batch(batch_size, micro_batch_size, world_size):
    """(slots, samples a micro-batch): the fewest slots that hold a batch and that every rank shares equally.

    slots >= batch_size, and split_batch(slots, samples a micro-batch, world_size) succeeds. Slots beyond the
    batch are for fillers without a loss.
    """
    per_rank = -(-batch_size // world_size)
    accumulation = -(-per_rank // micro_batch_size)
    micro = -(-per_rank // accumulation)
    return micro * accumulation * world_size, micro


def replicas_of(ranks, tensor_parallel):
    """How many replicas `ranks` ranks hold; UserError where `tensor_parallel` does not divide them."""
    if ranks % tensor_parallel:
        raise UserError(
            f"engine.tensor_parallel: {tensor_parallel} ranks to a replica do not divide {ranks} in all; "
            f"give --ranks a multiple of {tensor_parallel}, or choose another engine.tensor_parallel"
        )
    return ranks // tensor_parallel


def accumulates_in_fp32(precision, zero_stage, accumulation):
    """Whether the gradients of `accumulation` micro-batches are added up in fp32 and not as they come."""
    return precision == "bf16" and zero_stage > 0 and accumulation > 1


def deepspeed_config(run, world_size, zero=None):
    """The JSON that DeepSpeed is given for `run` on `world_size` ranks among which samples are divided.

    zero: what a plan (plan.py) says beside the ZeRO stage.
    """
    micro, accumulation = split_batch(run.batch_size, run.micro_batch_size, world_size)
    config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": run.clip,
        "steps_per_print": NEVER,
        "zero_optimization": {"stage": run.zero_stage, **(zero or {})},
    }
    sums_in_fp32 = accumulates_in_fp32(run.precision, run.zero_stage, accumulation)
    if (
        run.zero_stage in (1, 2)
        and run.precision != "fp32"
        and not run.clip
        and not (run.zero_stage == 1 and sums_in_fp32)
    ):
        # Else DeepSpeed takes the norm of all gradients, in double precision, for nobody. In fp32 it looks there for
        # gradients that are not finite.
        config["zero_optimization"]["compute_grad_norm"] = False
    if run.precision == "bf16":
        config["bf16"] = {"enabled": True}
        if sums_in_fp32:
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    elif run.precision == "fp16":
        # fairseq starts at 2^7, but for the sum of losses, which it divides after the backward pass. Ours is
        # the mean: smaller by the count of masked tokens.
        config["fp16"] = {"enabled": True, "initial_scale_power": 12}
    return config
