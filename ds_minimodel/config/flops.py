"""Costs of a recipe's steps, for each of its systems."""

from typing import Any

from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.steps import Adapt
from ds_minimodel.config.systems import System
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.flops import (
    EFLOP,
    EFLOPS_PER_V100_DAY,
    Cost,
    Workload,
    divergence_flops,
    step_flops,
)
from ds_minimodel.models.objectives import Objective
from ds_minimodel.training.config import Training


def recipe_costs(recipe: Recipe) -> list[dict[str, Any]]:
    """Return a row for each system and step of a recipe.

    `adapt` is the cost of one language. The pretraining of a body that two systems share is paid
    once, though both have a row. With a base there is no row of pretraining.

    Returns:
        Rows {"system", "step", "formula_eflops", "executed_eflops", "v100_days"}; V100 days are by
        the formula.
    """
    return [
        {
            "system": system.name,
            "step": step,
            "formula_eflops": cost.formula / EFLOP,
            "executed_eflops": cost.executed / EFLOP,
            "v100_days": cost.formula / EFLOP / EFLOPS_PER_V100_DAY,
        }
        for system in recipe.chosen_systems
        for step, cost in _system_costs(recipe, system).items()
    ]


def _system_costs(recipe: Recipe, system: System) -> dict[str, Cost]:
    """Return {step: cost} of one system."""
    mini = recipe.mini
    adapt = recipe.adapt
    costs = {}

    def work(section: Training, vocab_size: int, num_base: int = 0) -> Workload:
        return step_work(
            recipe.trained_by,
            recipe.body_config,
            section,
            vocab_size,
            steps=section.steps,
            num_base=num_base,
        )

    if recipe.base is None:
        of_step = work(recipe.pretrain, recipe.source_vocab_size)
        depths = system.head_depths(recipe.model.num_layers, mini)
        costs["pretrain"] = step_flops("pretrain", of_step, depths)
    if system.builds_mini:
        of_step = work(recipe.build_mini, recipe.source_vocab_size)
        depth = mini.depth + mini.new_layers
        costs["build-mini"] = step_flops("build-mini", of_step, [depth], mini.depth)
    of_step = work(adapt, recipe.target_vocab_size, recipe.num_base)
    costs["adapt"] = adapt_step_flops(system, recipe.adapt_depth(system), adapt, of_step)
    return costs


def adapt_step_flops(system: System, depth: int, adapt: Adapt, work: Workload) -> Cost:
    """Return the cost of step 2 of a system.

    Args:
        system: what trains.
        depth: number of layers that step 2 runs.
        adapt: settings of the step.
        work: samples, lengths and steps that are paid for.
    """
    low_rank = 0
    if system.trains == "low-rank":
        # This is imported here because it loads torch, which other systems' costs do without.
        from ds_minimodel.models.low_rank import low_rank_size

        low_rank = low_rank_size(work.body.with_layers(depth), adapt.rank)
    cost = step_flops("adapt", work, [depth], trains_body=system.trains == "all", low_rank=low_rank)
    if low_rank and adapt.replay_kl:
        # The paper's formula knows no divergence from the base, so it is executed alone.
        divergence = adapt.replay * divergence_flops(work, depth)
        cost = cost._replace(executed=cost.executed + divergence)
    return cost


def step_work(
    objective: Objective,
    body: BodyConfig,
    section: Training,
    vocab_size: int,
    steps: int = 1,
    num_base: int = 0,
) -> Workload:
    """Return the Workload of `steps` optimizer steps of a section that trains on text.

    Args:
        objective: what the body is trained with.
        body: architecture of the body.
        section: sizes of a step.
        vocab_size: ids that are predicted.
        steps: optimizer steps.
        num_base: first ids that do not train.
    """
    share = objective.share_read(section)
    if body.head is not None:
        share = body.head.share_read(section.seq_length)
    return Workload(
        body=body,
        vocab_size=vocab_size,
        seq_length=section.seq_length,
        share_read=share,
        batch_size=section.batch_size,
        steps=steps,
        num_base=num_base,
        predicts_tokens=objective.predicts_tokens,
    )
