"""Step 1: pretrain each body with its heads on the source language -> body + source pack; or take over a base."""

import shutil
from pathlib import Path

import torch

from ds_minimodel.common.files import atomic_folder
from ds_minimodel.engine.loop import train
from ds_minimodel.jobs import Job, inputs_hash
from ds_minimodel.model.artifacts import (
    BodyArtifact,
    PackArtifact,
    identity,
    load_body,
    load_pack,
    save_body,
    save_pack,
    space_of,
)
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.parameters import tensors_under
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.steps.training import masked_lm_cost, masked_lm_run, masked_lm_sampler, micro_batches
from ds_minimodel.systems import bodies, body_config, model_inputs


def jobs(recipe, layout):
    source = recipe.languages.source
    if recipe.base is not None:
        hashes = {part: identity(Path(recipe.base) / part) for part in ("body", "pack")}
        return [
            Job(
                layout.pretrain("bl_base"),
                {"base": hashes},
                (layout.tokenizer(source),),
                lambda world: world.from_main(lambda: _take_over(Path(recipe.base), layout.pretrain("bl_base"))),
            )
        ]
    inputs = {
        "seed": recipe.seed,
        "pretrain": recipe.pretrain.model_dump(),
        "blocks": recipe.data.blocks,
        "precision": recipe.engine.precision,
    }
    return [
        Job(
            layout.pretrain(body),
            {**inputs, **model_inputs(recipe, body)},
            (layout.tokenizer(source), layout.tokens(source)),
            lambda world, body=body: _pretrain(recipe, layout, body, world),
        )
        for body in bodies(recipe)
    ]


def _take_over(base, out):
    """Copy the base's body and pack as they are; UserError where they are damaged or not of one space."""
    load_pack(base / "pack", load_body(base / "body").space)
    for part in ("body", "pack"):
        with atomic_folder(out / part) as folder:
            shutil.copytree(base / part, folder, dirs_exist_ok=True)


def _pretrain(recipe, layout, body, world):
    section, source, folder = recipe.pretrain, recipe.languages.source, layout.pretrain(body)
    sampler = masked_lm_sampler(recipe, section, layout, source, world)
    torch.manual_seed(recipe.seed)
    module = MaskedLanguageModel(body_config(recipe, body), sampler.store.vocab_size)
    config = module.body.config
    shard(module, world.tensor)
    cost = masked_lm_cost(recipe, section, sampler.store.vocab_size, "pretrain", config.head_depths)
    run = masked_lm_run(recipe, section, world, [(section.steps, cost)])
    weights = train(
        module, micro_batches(sampler, run, world), run, world, folder / "run", f"pretrain {body}", inputs_hash(folder)
    )

    def save():
        body_tensors, pack_tensors = tensors_under(weights, "body."), tensors_under(weights, "pack.")
        space = space_of(body_tensors, pack_tensors)
        eflops = run.flops_until(run.steps)[0] / 1e18
        save_body(folder / "body", BodyArtifact(config, body_tensors, space), "body", steps=run.steps, eflops=eflops)
        save_pack(
            folder / "pack",
            PackArtifact(source, pack_tensors, space, run.steps, eflops),
            layout.tokenizer(source),
            parents={"body": identity(folder / "body")},
        )

    world.from_main(save)
