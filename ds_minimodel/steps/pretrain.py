"""Step 1: pretrain each body with its heads on the source language -> body + source pack; or take over a base."""

import shutil
from functools import partial
from pathlib import Path

import torch

from ds_minimodel.common.files import atomic_folder
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.jobs.records import Job
from ds_minimodel.models import BODIES
from ds_minimodel.models.artifacts import (
    BodyArtifact,
    PackArtifact,
    identity,
    load_body,
    load_pack,
    save_body,
    save_pack,
    space_of,
)
from ds_minimodel.models.initialisation import zero_padding_row
from ds_minimodel.models.trainable import LanguageModel, tensors_under
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import (
    body_of,
    finished_checkpoints,
    language_model,
    text_cost,
    text_inputs,
    train_on_source,
)


def jobs(context: Context) -> list[Job]:
    recipe, layout = context.recipe, context.layout
    source = recipe.languages.source
    if recipe.base is not None:
        base = Path(recipe.base)
        (body,) = recipe.bodies
        inputs = {"base": {part: identity(base / part) for part in ("body", "pack")}}
        out = layout.pretrain(body)
        make = partial(_take_over, base, out)
        return [Job(out, inputs, (layout.tokenizer(source),), lambda: context.world.from_main(make))]
    shared = text_inputs(recipe, "pretrain") | {"model": recipe.model.recorded()}
    return [
        Job(
            layout.pretrain(body),
            {**shared, "head_depths": list(body_of(recipe, body)[1])},
            (layout.tokenizer(source), layout.tokens(source)),
            partial(_pretrain, context, body),
            finished_checkpoints(layout.pretrain(body)),
        )
        for body in recipe.bodies
    ]


def pretrained_model(recipe: Recipe, body: System) -> LanguageModel:
    """The model of step 1 as it starts; all of its weights train."""
    module = language_model(recipe, *body_of(recipe, body), recipe.source_vocab_size)
    if recipe.model.initialisation != "random":
        BODIES[recipe.model.kind].start(module.body, recipe.model.initialisation)
    return module


def _take_over(base: Path, out: Path) -> None:
    """Copy the base's body and pack as they are; UserError where they are damaged or not of one space."""
    load_pack(base / "pack", load_body(base / "body").space)
    for part in ("body", "pack"):
        with atomic_folder(out / part) as folder:
            shutil.copytree(base / part, folder, dirs_exist_ok=True)


def _pretrain(context: Context, body: System) -> None:
    recipe, layout = context.recipe, context.layout
    source, folder = recipe.languages.source, layout.pretrain(body)
    torch.manual_seed(recipe.seed)
    module = pretrained_model(recipe, body)
    zero_padding_row(module.pack.tokens, open_tokenizer(layout.tokenizer(source)).vocabulary)
    config, depths = module.body.config, module.body.head_depths
    cost = text_cost(recipe, recipe.pretrain, recipe.source_vocab_size, "pretrain", depths)
    weights, run = train_on_source(context, recipe.pretrain, module, cost, folder, f"pretrain {body.name}")

    def save() -> None:
        body_tensors, pack_tensors = tensors_under(weights, "body."), tensors_under(weights, "pack.")
        space, steps = space_of(body_tensors, pack_tensors), run.schedule.steps
        eflops = run.accounting.eflops_until(steps)
        trained = BodyArtifact(config, depths, body_tensors, space, objective=recipe.objective)
        save_body(folder / "body", trained, "body", steps=steps, eflops=eflops)
        pack = PackArtifact(source, pack_tensors, space, steps, eflops)
        save_pack(folder / "pack", pack, layout.tokenizer(source), parents={"body": identity(folder / "body")})

    context.world.from_main(save)
