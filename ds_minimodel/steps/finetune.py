"""Step 3: finetune each body on each task in the source language, embeddings frozen -> a task model a seed."""

from dataclasses import replace
from functools import partial

import torch

from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.jobs.records import Job, inputs_hash
from ds_minimodel.models.artifacts import identity, load_body, load_pack, save_body
from ds_minimodel.models.flops import Work, finetune_flops
from ds_minimodel.models.mini import tensors_of
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import load_into, train_only
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.development import evaluation
from ds_minimodel.steps.training import (
    checkpoints_of,
    finished_checkpoints,
    micro_batches,
    seeds_of_task,
    task_inputs,
    training_run,
)
from ds_minimodel.tasks import FINETUNED, KINDS
from ds_minimodel.tasks.batches import TaskSampler
from ds_minimodel.training.checkpoints.best import BestWeights
from ds_minimodel.training.loop import train
from ds_minimodel.training.run import fill_batch


def check_tasks(recipe: Recipe) -> None:
    """Raise UserError for a task file that is missing, lacks a column or has a label that is not the task's."""
    for task in recipe.finetune.tasks.values():
        KINDS[task.kind].check_files(task, recipe.languages.source)


def jobs(context: Context) -> list[Job]:
    """Jobs that finetune each body on each task, one a seed."""
    recipe, layout = context.recipe, context.layout
    section, listed = recipe.finetune, []
    shared = {"finetune": section.recorded(), **recipe.engine.recorded()}
    for body in recipe.bodies:
        parents = (layout.pretrain(body), layout.tokenizer(recipe.languages.source))
        for name in section.finetuned_tasks:
            inputs = shared | {"task": task_inputs(recipe, name, section.files_of(name))}
            inputs |= {"keep": "best"} if section.of(name, "keep") == "best" else {}
            for seed in seeds_of_task(recipe, name):
                folder = layout.finetune(body, name, seed)
                make = partial(_finetune, context, body, name, seed)
                listed.append(Job(folder, {**inputs, "seed": seed}, parents, make, finished_checkpoints(folder)))
    return listed


def _finetune(context: Context, system: System, name: str, seed: int) -> None:
    recipe, layout, world = context.recipe, context.layout, context.world
    section, task, source = recipe.finetune, recipe.finetune.tasks[name], recipe.languages.source
    tokenizer = open_tokenizer(layout.tokenizer(source))
    kind = FINETUNED[task.kind]
    labels = kind.labels(task, source)
    records = kind.read(task.train, task, source, labels)
    body = load_body(layout.pretrain(system) / "body")
    max_length = section.of(name, "max_length")
    examples = kind.encode(tokenizer, records, task, max_length, body.config.separators).examples
    batch_size = section.of(name, "batch_size")
    slots, micro_batch_size = fill_batch(batch_size, recipe.engine.micro_batch_size, world.data.size)
    sampler = TaskSampler(examples, batch_size, seed, slots)

    pack = load_pack(layout.pretrain(system) / "pack", body.space)
    config = kind.body_config(task, body.config)
    torch.manual_seed(seed)
    module = kind.module(config, recipe.source_vocab_size, labels)
    load_into(module, tensors_of(body, config), "body.")
    load_into(module, pack.tensors, "pack.")
    train_only(module, lambda key: not key.startswith("pack."))
    split_model(module, world.tensor)

    epoch = sampler.updates_per_epoch
    steps = epoch * section.of(name, "epochs")
    mean_length = round(float(examples.lengths.mean()))
    work = Work(config, recipe.source_vocab_size, mean_length, 0.0, batch_size)
    cost = finetune_flops(work, kind.num_outputs(labels), kind.reads_start)
    run = training_run(
        recipe,
        section,
        world,
        steps=steps,
        batch_size=slots,
        lr=section.of(name, "lr"),
        warmup_steps=round(section.warmup_ratio * steps),
        tokens_per_step=batch_size * mean_length,
        phases=((steps, cost.formula, cost.executed),),
        micro_batch_size=micro_batch_size,
    )
    folder = layout.finetune(system, name, seed)
    job, keeps_best = inputs_hash(folder), section.of(name, "keep") == "best"
    best = BestWeights(checkpoints_of(folder), job, world) if keeps_best else None
    epochs = range(epoch, steps + 1, epoch)
    weights = train(
        module,
        micro_batches(sampler, run, world),
        run,
        world,
        folder / "run",
        f"finetune {system.body_name} {name} seed {seed}",
        job,
        evaluation=evaluation(recipe, name, labels, tokenizer, body.config.separators, epochs, world, best),
    )
    steps, weights = best.load() if best else (steps, weights)
    trained = replace(
        body,
        config=config,
        head_depths=config.task_depths,
        tensors=weights,
        task={"name": name, "kind": task.kind, "labels": labels},
    )
    world.from_main(
        lambda: save_body(
            folder / "model",
            trained,
            "task-model",
            seed=seed,
            steps=steps,
            eflops=run.accounting.eflops_until(steps),
            parents={"body": identity(layout.pretrain(system) / "body")},
        )
    )
