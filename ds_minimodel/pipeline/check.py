"""What can be checked before days of training are spent on it."""

import importlib.util
import sys
from collections.abc import Iterable

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.reader import find_files
from ds_minimodel.engine.execution import replicas_of, split_batch
from ds_minimodel.pipeline.run import Step
from ds_minimodel.recipe.schema import MaskedLm, Recipe
from ds_minimodel.steps.first_pack import check_vectors
from ds_minimodel.tasks import KINDS


def check_ahead(recipe: Recipe, steps: Iterable[Step], ranks: int) -> list[Step]:
    """The steps of `steps` that the recipe has work for; UserError for what a later one would stumble on.

    Every text file must exist, every task file be readable with the task's labels, every batch of text divide
    among the `ranks`, what initialises the packs be there, and what draws the plots be installed. Language
    packs alone can be had without plots.
    """
    replicas = replicas_of(ranks, recipe.engine.tensor_parallel)
    for language in recipe.languages_of_text:
        find_files(recipe.data.text[language])
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


def check_plots() -> None:
    """UserError where what draws the report's plots is not installed."""
    if not _can_plot():
        raise UserError("the report needs matplotlib: pip install 'ds_minimodel[report]'")


def _can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def check_tasks(recipe: Recipe) -> None:
    """UserError for a task file that is missing, lacks a column or has a label that is not the task's."""
    for task in recipe.finetune.tasks.values():
        KINDS[task.kind].check_files(task, recipe.languages.source)
