"""Step 1b (MiniPost): train new layers between the bottom of the body and its head, on the source language."""

from dataclasses import replace
from functools import partial

from ds_minimodel.jobs.records import Job, inputs_hash
from ds_minimodel.models.artifacts import BodyArtifact, identity, load_body, load_pack, save_body
from ds_minimodel.models.mini import is_layer_from, with_new_layers
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import LanguageModel, load_into, tensors_under, train_only
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.held_out import evaluation
from ds_minimodel.steps.training import (
    finished_checkpoints,
    language_model,
    micro_batches,
    text_cost,
    text_run,
    text_sampler,
)
from ds_minimodel.training.loop import train


def jobs(context: Context) -> list[Job]:
    recipe, layout = context.recipe, context.layout
    source = recipe.languages.source
    inputs = {
        "seed": recipe.seed,
        "objective": recipe.objective,
        "build_mini": recipe.build_mini.recorded(),
        "mini": {"depth": recipe.mini.depth, "new_layers": recipe.mini.new_layers},
        **recipe.data.recorded(),
        **recipe.engine.recorded(),
    }
    return [
        Job(
            layout.build_mini(system),
            inputs,
            (layout.pretrain(system), layout.tokenizer(source), layout.tokens(source)),
            partial(_build, context, system),
            finished_checkpoints(layout.build_mini(system)),
        )
        for system in recipe.chosen_systems
        if system.builds_mini
    ]


def mini_model(recipe: Recipe, body: BodyArtifact) -> tuple[BodyArtifact, LanguageModel]:
    """The mini-model with untrained new layers over a body, and the model of step 1b, in which they alone train."""
    depth = recipe.mini.depth
    mini = with_new_layers(body, depth, recipe.mini.new_layers, recipe.seed, recipe.build_mini.initialisation == "last")
    module = language_model(recipe, mini.config, mini.head_depths, recipe.source_vocab_size)
    load_into(module, mini.tensors, "body.")
    train_only(module, lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth))
    return mini, module


def _build(context: Context, system: System) -> None:
    recipe, layout, world = context.recipe, context.layout, context.world
    section, source, folder = recipe.build_mini, recipe.languages.source, layout.build_mini(system)
    sampler = text_sampler(context, section, source)
    body = load_body(layout.pretrain(system) / "body")
    pack = load_pack(layout.pretrain(system) / "pack", body.space)
    mini, module = mini_model(recipe, body)
    load_into(module, pack.tensors, "pack.")
    split_model(module, world.tensor)
    cost = text_cost(recipe, section, recipe.source_vocab_size, "build-mini", mini.head_depths, recipe.mini.depth)
    run = text_run(recipe, section, world, [(section.steps, cost)])
    batches = micro_batches(sampler, run, world)
    weights = train(
        module,
        batches,
        run,
        world,
        folder / "run",
        f"build-mini {system.name}",
        inputs_hash(folder),
        evaluation=evaluation(context, section, source, run),
    )
    trained = replace(mini, tensors={**mini.tensors, **tensors_under(weights, "body.")})
    world.from_main(
        lambda: save_body(
            folder / "mini",
            trained,
            "mini-model",
            steps=run.schedule.steps,
            eflops=run.accounting.eflops_until(run.schedule.steps),
            parents={"body": identity(layout.pretrain(system) / "body")},
        )
    )
