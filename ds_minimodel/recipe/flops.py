"""Costs of a recipe's steps, for each of its systems."""

from typing import Any

from ds_minimodel.models.flops import EFLOP, EFLOPS_PER_V100_DAY, Cost, Work, step_flops
from ds_minimodel.recipe.schema import Recipe, Training
from ds_minimodel.recipe.systems import System


def recipe_costs(recipe: Recipe) -> list[dict[str, Any]]:
    """Rows {"system", "step", "formula_eflops", "executed_eflops", "v100_days"}; V100 days are by formula.

    adapt is the cost of one language. The pretraining of a body that two systems share is paid once, though both have
    a row. None for the pretraining of a base.
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
    num_layers, mini, adapt = recipe.model.num_layers, recipe.mini, recipe.adapt
    source_vocab_size, costs = recipe.source_vocab_size, {}
    if recipe.base is None:
        work = whole_work(recipe, recipe.pretrain, source_vocab_size)
        costs["pretrain"] = step_flops("pretrain", work, system.head_depths(num_layers, mini))
    if system.builds_mini:
        work = whole_work(recipe, recipe.build_mini, source_vocab_size)
        costs["build-mini"] = step_flops("build-mini", work, [mini.depth + mini.new_layers], mini.depth)
    work = whole_work(recipe, adapt, recipe.target_vocab_size, recipe.frozen_rows)
    return costs | {"adapt": adapt_step_flops(recipe, system, work)}


def adapt_step_flops(recipe: Recipe, system: System, work: Work) -> Cost:
    """Cost of `work` in step 2 of a system."""
    depth, low_rank = system.adapt_depth(recipe.model.num_layers, recipe.mini), 0
    if system.trains == "low-rank":
        from ds_minimodel.models.low_rank import low_rank_size  # with torch, which other systems' costs do without

        low_rank = low_rank_size(recipe.body_config.with_layers(depth), recipe.adapt.rank)
    return step_flops("adapt", work, [depth], trains_body=system.trains == "all", low_rank=low_rank)


def step_work(recipe: Recipe, section: Training, vocab_size: int, steps: int = 1, kept: int = 0) -> Work:
    """The Work of `steps` optimizer steps of a section of the recipe that trains on text."""
    share = recipe.trained_by.share_read(section)
    return Work(recipe.body_config, vocab_size, section.seq_length, share, section.batch_size, steps, kept)


def whole_work(recipe: Recipe, section: Training, vocab_size: int, kept: int = 0) -> Work:
    """The Work of all its steps."""
    return step_work(recipe, section, vocab_size, section.steps, kept)
