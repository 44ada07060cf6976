"""Checks of a recipe before days of training are spent on it."""

import importlib.util
import sys
from collections.abc import Iterable

from ds_minimodel.common.extras import import_extra
from ds_minimodel.config.schema import Recipe
from ds_minimodel.launch.hosts import name_the_cpu
from ds_minimodel.ops.gpu import check_gpus, device
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.pipeline.records import refuse_if_stale
from ds_minimodel.pipeline.registry import Step
from ds_minimodel.pipeline.steps.corpus import check_text
from ds_minimodel.pipeline.steps.finetune import check_tasks
from ds_minimodel.pipeline.training import text_steps
from ds_minimodel.training.run import Accounting, Execution, Run, replicas_of, split_batch
from ds_minimodel.training.zero.config import check_deepspeed


def check_ahead(recipe: Recipe, steps: Iterable[Step], ranks: int) -> list[Step]:
    """Return those steps that the recipe has work for, if nothing will stop a later one.

    Every text file must exist, every task file be readable with the task's labels, every batch of
    text divide among the ranks, what draws the plots be installed, and torch have code for the
    GPUs. Language packs alone can be had without plots.

    Args:
        recipe: To be checked.
        steps: To be done.
        ranks: That will do them.

    Raises:
        UserError: One of these does not hold.
    """
    replicas = replicas_of(ranks, recipe.engine.tensor_parallel)
    accelerator = device()
    if accelerator.type == "cuda":
        check_gpus(ranks)
    resolve_precision(recipe.engine.precision, accelerator)
    check_text(recipe)
    check_tasks(recipe)
    for section in text_steps(recipe, recipe.chosen_systems).values():
        split_batch(section.batch_size, recipe.engine.micro_batch_size, replicas)
    check_deepspeed_file(recipe, replicas)
    if recipe.finetune.tasks:
        check_plots()
        return list(steps)
    left = [step for step in steps if not step.needs_tasks]
    end = "and a report of their costs and losses"
    if not _can_plot():
        left = [step for step in left if not step.draws]
        end = "without a report, which needs matplotlib"
    print(
        f"the recipe names no finetune.tasks: the run ends with the language packs {end}",
        file=sys.stderr,
    )
    return left


def check_deepspeed_file(recipe: Recipe, replicas: int) -> None:
    """Raise UserError where DeepSpeed does not take the JSON that the recipe names."""
    engine = recipe.engine
    file = engine.deepspeed
    if not file.path:
        return
    section = recipe.adapt
    execution = Execution(
        batch_size=section.batch_size,
        micro_batch_size=engine.micro_batch_size,
        zero_stage=engine.zero_stage,
        precision="fp32" if engine.precision == "auto" else engine.precision,
    )
    run = Run(
        schedule=section.lr_schedule,
        execution=execution,
        accounting=Accounting(1),
        optimizer=recipe.optimizer,
        checkpoints=recipe.checkpoint,
        deepspeed=file.settings,
        deepspeed_file=file.path,
    )
    name_the_cpu()
    check_deepspeed(run, replicas)


def check_made(recipe: Recipe, steps: Iterable[Step]) -> None:
    """Raise UserError where what a step has made is of another recipe.

    It is called before the first step, so that none works in vain.
    """
    for step in steps:
        for job in step.jobs(recipe):
            refuse_if_stale(job)


def check_plots() -> None:
    """Raise UserError where what draws the report's plots is not installed."""
    import_extra("matplotlib", "report")


def _can_plot() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
