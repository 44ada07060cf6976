"""Step 3: finetune each body on each task in the source language, embeddings frozen -> a task model a seed."""

import torch

from ds_minimodel import tasks
from ds_minimodel.costs import Work, finetune_flops
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.engine.execution import fill_batch
from ds_minimodel.engine.loop import train
from ds_minimodel.jobs import Job, inputs_hash
from ds_minimodel.model.artifacts import BodyArtifact, identity, load_body, load_pack, save_body
from ds_minimodel.model.mini import without_heads
from ds_minimodel.model.parameters import load_into, train_only
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.steps.task_data import labels_of, read_examples, task_inputs, task_module
from ds_minimodel.steps.training import finetune_seeds, micro_batches, run_config


def jobs(recipe, layout):
    found = []
    optimizer = recipe.finetune.model_dump(exclude={"tasks", "seeds", "epochs", "batch_size", "lr", "max_length"})
    for body in recipe.bodies:
        for name, task in recipe.finetune.tasks.items():
            inputs = {
                "finetune": optimizer,
                "task": task_inputs(recipe, name, [task.train]),
                "precision": recipe.engine.precision,
            }
            found += [
                Job(
                    layout.finetune(body, name, seed),
                    {**inputs, "seed": seed},
                    (layout.pretrain(body), layout.tokenizer(recipe.languages.source)),
                    lambda world, body=body, name=name, seed=seed: _finetune(recipe, layout, body, name, seed, world),
                )
                for seed in finetune_seeds(recipe)
            ]
    return found


def _finetune(recipe, layout, system, name, seed, world):
    section, task, source = recipe.finetune, recipe.finetune.tasks[name], recipe.languages.source
    tokenizer = open_tokenizer(layout.tokenizer(source))
    labels = None if task.kind == "qa" else labels_of(task, source)
    encoded, _ = read_examples(recipe, name, task.train, source, tokenizer, labels)
    examples = encoded.examples if task.kind == "qa" else encoded
    batch_size = section.of(name, "batch_size")
    slots, micro_batch_size = fill_batch(batch_size, recipe.engine.micro_batch_size, world.data.size)
    sampler = tasks.TaskSampler(examples, batch_size, seed, slots)

    body = load_body(layout.pretrain(system) / "body")
    pack = load_pack(layout.pretrain(system) / "pack", body.space)
    config = without_heads(body.config)
    torch.manual_seed(seed)
    module = task_module(task.kind, config, tokenizer.vocab_size, labels)
    load_into(module, {key: tensor for key, tensor in body.tensors.items() if not key.startswith("heads.")}, "body.")
    load_into(module, pack.tensors, "pack.")
    train_only(module, lambda key: not key.startswith("pack."))
    shard(module, world.tensor)

    steps = sampler.updates_per_epoch * section.of(name, "epochs")
    mean_length = round(float(examples.lengths.mean()))
    work = Work(config.hidden_size, config.ffn_size, tokenizer.vocab_size, mean_length, 0.0, batch_size)
    cost = finetune_flops(work, config.num_layers, len(labels or ("start", "end")), task.kind)
    run = run_config(
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
    weights = train(
        module,
        micro_batches(sampler, run, world),
        run,
        world,
        folder / "run",
        f"finetune {system.body_name} {name} seed {seed}",
        inputs_hash(folder),
    )
    trained = BodyArtifact(config, weights, body.space, {"name": name, "kind": task.kind, "labels": labels})
    world.from_main(
        lambda: save_body(
            folder / "model",
            trained,
            "task-model",
            seed=seed,
            steps=steps,
            eflops=run.accounting.flops_until(steps)[0] / 1e18,
            parents={"body": identity(layout.pretrain(system) / "body")},
        )
    )
