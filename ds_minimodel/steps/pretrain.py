"""Step 1: pretrain each body with its heads on the source language -> body + source pack; or take over a base."""

from functools import partial

import torch

from ds_minimodel.artifacts.base import identity_of_base, refer
from ds_minimodel.artifacts.models import BodyArtifact, save_model, space_of
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.jobs.records import Job
from ds_minimodel.models import BODIES
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
        (body,) = recipe.bodies
        make = partial(refer, recipe.base, layout.model(body), source, layout.tokenizer(source))
        inputs = {"base": identity_of_base(recipe.base)}
        return [Job(layout.pretrain(body), inputs, (layout.tokenizer(source),), lambda: context.world.from_main(make))]
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
        pack = trained.adaptation(source, pack_tensors, steps=steps, eflops=eflops)
        save_model(layout.model(body), trained, pack, layout.tokenizer(source))

    context.world.from_main(save)
