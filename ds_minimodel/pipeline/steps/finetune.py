"""Step 3: finetune each body on each task in the source language, with its embeddings frozen.

It makes a task model a seed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, Any

import torch

from ds_minimodel.artifacts.mini import tensors_of
from ds_minimodel.artifacts.models import load_model, save_body
from ds_minimodel.common.config import DECIDES_NOTHING
from ds_minimodel.common.names import Name
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import System
from ds_minimodel.evaluation import FINETUNED, KINDS
from ds_minimodel.evaluation.batches import INFERENCE_TOKENS, TaskSampler, inference_batches
from ds_minimodel.evaluation.kind import FinetunedConfig
from ds_minimodel.models.flops import Workload, finetune_flops
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import load_into, to_tensors, train_only
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.records import Job
from ds_minimodel.pipeline.training import (
    StepConfig,
    finished_checkpoints,
    seeds_of_task,
    train_job,
    training_run,
)
from ds_minimodel.tokenizers.tokenizer import Tokenizer, open_tokenizer
from ds_minimodel.training.config import Schedule
from ds_minimodel.training.loop import Evaluation, Weights
from ds_minimodel.training.run import fill_batch
from ds_minimodel.training.world import World

WARM_UP = 0.06  # share of the steps


def check_tasks(recipe: Recipe) -> None:
    """Raise UserError for a task file that is missing, lacks a column or has an unknown label."""
    for task in recipe.finetune.tasks.values():
        KINDS[task.kind].check_files(task, recipe.languages.source)


class FinetuneConfig(StepConfig):
    """Settings of a job of step 3.

    Attributes:
        source: Source language.
        name: Of the task.
        task: With the defaults of `finetune` filled in, and without test files.
    """

    source: Annotated[Name, DECIDES_NOTHING]
    name: Annotated[str, DECIDES_NOTHING]
    task: FinetunedConfig

    def recorded(self) -> dict[str, Any]:
        """Return what a record holds, as of a Section, without what only scores depend on."""
        facts = super().recorded()
        task = {key: value for key, value in facts["task"].items() if key not in self.task.scored}
        return {**facts, "task": task}


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Jobs that finetune each body on each task, one a seed."""
    layout = context.layout
    section = recipe.finetune
    listed = []
    for body, name in product(recipe.bodies, section.finetuned_tasks):
        parents = (layout.pretrain(body), layout.tokenizer(recipe.languages.source))
        task = section.finetuned_tasks[name].model_copy(update={"test": {}})
        for seed in seeds_of_task(recipe, name):
            step = FinetuneConfig.of(
                recipe, seed=seed, name=name, task=task, source=recipe.languages.source
            )
            folder = layout.finetune(body, name, seed)
            job = Job(
                folder,
                inputs=step.recorded(),
                parents=parents,
                make=partial(_finetune, context, step, body),
                clean_up=finished_checkpoints(folder),
            )
            listed.append(job)
    return listed


def _finetune(context: Context, step: FinetuneConfig, system: System) -> None:
    layout = context.layout
    world = context.world
    name = step.name
    task = step.task
    source = step.source
    tokenizer = open_tokenizer(layout.tokenizer(source))
    kind = FINETUNED[task.kind]
    labels = kind.labels(task, source)
    records = kind.read(task.train, task, source, labels)
    body, pack = load_model(layout.model(system))
    batch_size, lr, epochs, max_length = task.training
    encoded = kind.encode(
        tokenizer,
        records,
        task=task,
        max_length=max_length,
        separators=body.config.separators,
    )
    examples = encoded.examples
    slots, micro_batch_size = fill_batch(batch_size, step.engine.micro_batch_size, world.data.size)
    sampler = TaskSampler(examples, batch_size, step.seed, slots)

    torch.manual_seed(step.seed)
    module = kind.module(body.config, pack.rows, labels)
    load_into(module, tensors_of(body, module.body), "body.")
    load_into(module, pack.embeddings, "pack.")
    train_only(module, lambda key: not key.startswith("pack."))
    split_model(module, world.tensor)

    steps_per_epoch = sampler.updates_per_epoch
    steps = steps_per_epoch * epochs
    mean_length = round(float(examples.lengths.mean()))
    work = Workload(body.config, pack.rows, mean_length, 0.0, batch_size)
    cost = finetune_flops(work, kind.num_outputs(labels), reads_start=kind.reads_start)
    run = training_run(
        step,
        world,
        schedule=Schedule(steps, lr, round(WARM_UP * steps)),
        batch_size=slots,
        tokens_per_step=batch_size * mean_length,
        cost=cost,
        micro_batch_size=micro_batch_size,
    )
    folder = layout.finetune(system, name, step.seed)
    evaluation = development_evaluation(
        step,
        labels,
        tokenizer,
        separators=body.config.separators,
        steps=range(steps_per_epoch, steps + 1, steps_per_epoch),
        world=world,
    )
    weights = train_job(
        module,
        sampler,
        run,
        world,
        folder,
        label=f"finetune {system.body_name} {name} seed {step.seed}",
        evaluation=evaluation,
    )
    of_task = {"name": name, "kind": task.kind, "labels": labels}
    trained = replace(body, head_depths=body.config.task_depths, tensors=weights, task=of_task)
    facts = {"seed": step.seed, "steps": steps, "eflops": run.accounting.eflops_until(steps)}
    model = layout.model(system)
    world.broadcast_from_rank0(
        lambda: save_body(folder / "model", trained, "task-model", model, **facts)
    )


def development_evaluation(
    step: FinetuneConfig,
    labels: list[str] | None,
    tokenizer: Tokenizer,
    separators: int,
    steps: range,
    world: World,
) -> Evaluation:
    """Return the score on a task's development file after each epoch of its finetuning.

    Without such a file there is none. Batches are the same on any number of ranks, and need no more
    memory than a training step's.

    Args:
        step: The finetuning.
        labels: As the task's model has them.
        tokenizer: Of the source language.
        separators: As the task's model has them.
        steps: After which the model is scored.
        world: The ranks.
    """
    task = step.task
    source = step.source
    if not task.dev:
        return Evaluation()
    kind = FINETUNED[task.kind]
    max_length = task.max_length or 0
    records = kind.read(task.dev, task, source, labels)
    encoded = kind.encode(
        tokenizer, records, task=task, max_length=max_length, separators=separators
    )
    max_tokens = min(INFERENCE_TOKENS[world.device.type], step.engine.micro_batch_size * max_length)
    batches = list(inference_batches(encoded.examples, max_tokens))
    data = world.data

    def scores(_: int, module: torch.nn.Module, weights: Callable[[], Weights]) -> dict[str, float]:
        of_rank = []
        for first in range(0, len(batches), data.size):
            # All ranks run the model equally often: one without a batch runs another's.
            is_filler = first + data.rank >= len(batches)
            index, batch = batches[first if is_filler else first + data.rank]
            tensors = to_tensors(batch, world.device)
            del tensors["targets"]
            logits = module(tensors).float().cpu().numpy()
            if not is_filler and world.tensor.rank == 0:
                of_rank.append((index, logits))
        outputs = [pair for pairs in world.all_gather_object(lambda: of_rank) for pair in pairs]
        values = world.broadcast_from_rank0(
            lambda: kind.score(task, source, records, encoded, outputs)
        )
        # Progress shows the last value.
        score = values.pop("score")
        return {f"dev/{key}": value for key, value in values.items()} | {"dev/score": score}

    return Evaluation(steps, scores)
