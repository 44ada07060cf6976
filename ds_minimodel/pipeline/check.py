"""Checks of a recipe before days of training are spent on it."""

import importlib.util
import os
import sys
from collections.abc import Collection, Iterable

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.jobs.first_pack import check_vectors
from ds_minimodel.jobs.records import refuse_if_stale
from ds_minimodel.jobs.training import text_steps
from ds_minimodel.ops.gpu import check_gpus
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.pipeline.registry import Step
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.corpus import check_text
from ds_minimodel.steps.finetune import check_tasks
from ds_minimodel.training.config import CheckpointPolicy, Schedule
from ds_minimodel.training.ranks.launch import has_gpu, name_the_cpu
from ds_minimodel.training.run import Accounting, Execution, Run, fill_batch, replicas_of, split_batch
from ds_minimodel.training.zero.config import disagreements, let_deepspeed_check, refuse_disagreements

# Keys of DeepSpeed's JSON that are not compared ahead: at precision "auto"; in finetuning, by the number of examples.
_OF_PRECISION = ("fp16.enabled", "bf16.enabled", "data_types.grad_accum_dtype")
_OF_DATA = ("scheduler.params.total_num_steps", "scheduler.params.warmup_num_steps")


def check_ahead(recipe: Recipe, steps: Iterable[Step], ranks: int) -> list[Step]:
    """The steps of `steps` that the recipe has work for; UserError for what would stop a later one.

    Every text file must exist, every task file be readable with the task's labels, every batch of text divide
    among the `ranks`, what initialises the packs be there, what draws the plots be installed, and torch have
    code for the GPUs. Language packs alone can be had without plots.
    """
    replicas = replicas_of(ranks, recipe.engine.tensor_parallel)
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        check_gpus(ranks)
    resolve_precision(recipe.engine.precision, torch.device("cuda" if has_gpu() else "cpu"))
    check_text(recipe)
    check_tasks(recipe)
    for section in text_steps(recipe, recipe.chosen_systems).values():
        split_batch(section.batch_size, recipe.engine.micro_batch_size, replicas)
    check_vectors(recipe.adapt)
    check_deepspeed_file(recipe, replicas)
    if recipe.finetune.tasks:
        check_plots()
        return list(steps)
    left, end = [step for step in steps if not step.needs_tasks], "and a report of their costs and losses"
    if not _can_plot():
        left = [step for step in left if step.name != "report"]
        end = "without a report, which needs matplotlib"
    print(f"the recipe names no finetune.tasks: the run ends with the language packs {end}", file=sys.stderr)
    return left


def check_deepspeed_file(recipe: Recipe, replicas: int) -> None:
    """Raise UserError, with each key and the steps, where the recipe's DeepSpeed JSON disagrees with what they train.

    And where DeepSpeed does not take it.
    What only the step knows is left to it: the precision that "auto" means there, and the steps of finetuning.
    """
    engine, finetune, file = recipe.engine, recipe.finetune, recipe.engine.deepspeed
    if not file.path:
        return
    unknown = _OF_PRECISION if engine.precision == "auto" else ()
    forms: dict[str, tuple[Schedule, int, int, Collection[str]]] = {
        step: (section.lr_schedule, section.batch_size, 0, unknown)
        for step, section in text_steps(recipe, recipe.chosen_systems).items()
    }
    for name, task in finetune.finetuned_tasks.items():
        size, lr, _, _ = task.training
        batch_size, micro = fill_batch(size, engine.micro_batch_size, replicas)
        forms[f"finetune {name}"] = Schedule(10**9, lr), batch_size, micro, (*unknown, *_OF_DATA)
    steps_of: dict[str, list[str]] = {}  # disagreement -> steps
    for step, (schedule, batch_size, micro, left) in forms.items():
        precision = "fp32" if engine.precision == "auto" else engine.precision
        execution = Execution(batch_size, micro or engine.micro_batch_size, engine.zero_stage, precision)
        run = Run(schedule, execution, Accounting(1), recipe.optimizer, CheckpointPolicy(), file.settings, file.path)
        for disagreement in disagreements(run, replicas, left):
            steps_of.setdefault(disagreement, []).append(step)
    refuse_disagreements(run, [f"{disagreement} ({', '.join(steps)})" for disagreement, steps in steps_of.items()])
    name_the_cpu()
    let_deepspeed_check(run, replicas)


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
