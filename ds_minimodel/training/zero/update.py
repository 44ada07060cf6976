"""Updates that differ from DeepSpeed's: which steps fp32 skips, and fewer passes over bf16 gradients on a CPU.

Where little else trains than a table of embeddings, reading and writing it is a large part of a small step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw

from ds_minimodel.training.run import Run

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from ds_minimodel.training.ranks.world import World

BLOCK = 1 << 18  # elements of a gradient whose fp32 copy stays in a core's cache


def adamw_for(parameters: Iterable[torch.nn.Parameter], run: Run, world: World) -> torch.optim.AdamW:
    """The optimizer of a run, for DeepSpeed to wrap."""
    rule = run.optimizer
    skips = run.execution.zero_stage == 0 and run.execution.precision == "fp32"
    optimizer = (SkippingAdamW if skips else torch.optim.AdamW)(
        parameters,
        lr=run.schedule.lr,
        betas=(rule.beta1, rule.beta2),
        eps=rule.eps,
        weight_decay=rule.weight_decay,
        fused=True,
    )
    if isinstance(optimizer, SkippingAdamW):
        optimizer.world = world
    return optimizer


class SkippingAdamW(torch.optim.AdamW):
    """AdamW that skips a step whose gradients are not finite on some rank, as DeepSpeed does but in fp32 at stage 0."""

    world: World
    overflow = False  # in the last step, which the engine then counts as skipped

    def step(self, closure: Any = None) -> Any:
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        finite = [_is_finite(parameter.grad) for parameter in parameters if parameter.grad is not None]
        (spoiled,) = self.world.sum(int(not torch.stack(finite).all()))
        self.overflow = spoiled > 0
        return None if self.overflow else super().step(closure)


def replace_bf16_update(engine: DeepSpeedEngine, run: Run, world: World) -> None:
    """On a CPU, replace DeepSpeed's check and step by those with fewer passes; the weights keep their bits."""
    if run.execution.precision != "bf16" or world.device.type != "cpu":
        return
    if run.execution.zero_stage in (1, 2):
        engine.optimizer._has_inf_or_nan = lambda gradient, _=None: ~_is_finite(gradient)
    elif run.execution.zero_stage == 0 and not run.optimizer.clip and world.tensor.size == 1:
        engine.optimizer.step = _BlockedStep(engine.optimizer)


class _BlockedStep:
    """`step` of DeepSpeed's optimizer of stage 0, one block of a parameter after the other.

    DeepSpeed takes the least and the largest of each gradient, an fp32 copy for its norm, another for Adam, and
    multiplies that by 1. Here the fp32 copy is of a block.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.first_step = optimizer, optimizer.step

    @torch.no_grad()
    def __call__(self) -> None:
        optimizer, adam = self.optimizer, self.optimizer.optimizer
        if not adam.state:  # Adam makes it
            self.first_step()
            return
        trained = [parameter for group in optimizer.fp16_groups for parameter in group]
        for parameter in trained:
            if parameter.grad is None:  # as DeepSpeed has it
                parameter.grad = torch.zeros_like(parameter)
        optimizer.overflow = not all(_is_finite(parameter.grad) for parameter in trained)
        optimizer._global_grad_norm = None
        if optimizer.overflow:
            return  # the engine counts the step as skipped
        for parameters, group in zip(optimizer.fp16_groups, adam.param_groups, strict=True):
            for parameter, master in zip(parameters, group["params"], strict=True):
                _update(parameter, master, adam.state[master], group)


def _is_finite(gradient: torch.Tensor) -> torch.Tensor:
    """Whether all elements are finite, by their norm: one pass, and no copy as for a norm in fp32."""
    return torch.linalg.vector_norm(gradient).isfinite()


def _update(parameter: torch.Tensor, master: torch.Tensor, state: dict[str, torch.Tensor], group: dict) -> None:
    """Update a parameter, its fp32 master and Adam's state from its gradient."""
    assert parameter.grad is not None
    flat = [tensor.view(-1) for tensor in (parameter, master, state["exp_avg"], state["exp_avg_sq"])]
    whole = [parameter.grad.reshape(-1), *flat]
    for blocks in zip(*(tensor.split(BLOCK) for tensor in whole), strict=True):
        gradient, rounded, weights, mean, square = blocks
        adamw(
            [weights],
            [gradient.float()],
            [mean],
            [square],
            [],
            [state["step"].clone()],  # counted up by each call
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        rounded.copy_(weights)
    state["step"] += 1
