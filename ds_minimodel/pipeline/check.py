"""Checks of a recipe before days of training are spent on it."""

import importlib.util
import sys
from collections.abc import Iterable

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import replicas_of, split_batch
from ds_minimodel.pipeline.order import Step
from ds_minimodel.recipe.jobs import refuse_if_stale
from ds_minimodel.recipe.schema import MaskedLm, Recipe
from ds_minimodel.steps.finetune import check_tasks
from ds_minimodel.steps.first_pack import check_vectors
from ds_minimodel.steps.prepare import check_text


def check_ahead(recipe: Recipe, steps: Iterable[Step], ranks: int) -> list[Step]:
    """The steps of `steps` that the recipe has work for; UserError for what would stop a later one.

    Every text file must exist, every task file be readable with the task's labels, every batch of text divide
    among the `ranks`, what initialises the packs be there, and what draws the plots be installed. Language
    packs alone can be had without plots.
    """
    replicas = replicas_of(ranks, recipe.engine.tensor_parallel)
    check_text(recipe)
    check_tasks(recipe)
    sections: list[MaskedLm] = [recipe.adapt]
    sections += [recipe.pretrain] if recipe.base is None else []
    sections += [recipe.build_mini] if recipe.builds_minis else []
    for section in sections:
        split_batch(section.batch_size, recipe.engine.micro_batch_size, replicas)
    check_vectors(recipe)
    if recipe.finetune.tasks:
        check_plots()
        return list(steps)
    left, end = [step for step in steps if not step.needs_tasks], "and a report of their costs and losses"
    if not _can_plot():
        left = [step for step in left if step.name != "report"]
        end = "without a report, which needs matplotlib"
    print(f"the recipe names no finetune.tasks: the run ends with the language packs {end}", file=sys.stderr)
    return left


def check_made(recipe: Recipe, steps: Iterable[Step]) -> None:
    """UserError where what a step has made is of another recipe, so that no step before it works in vain."""
    for step in steps:
        for job in step.jobs(recipe):
            refuse_if_stale(job)


def check_plots() -> None:
    """Raise UserError where what draws the report's plots is not installed."""
    if not _can_plot():
        raise UserError("the report needs matplotlib: pip install 'ds_minimodel[report]'")


def _can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
