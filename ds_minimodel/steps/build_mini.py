"""Step 1b (MiniPost): train new layers between the bottom of the body and its head, on the source language."""

from dataclasses import replace
from functools import partial

from ds_minimodel.artifacts.lazy import LazyTensors, lazily
from ds_minimodel.artifacts.mini import is_layer_from, with_new_layers
from ds_minimodel.artifacts.models import BodyArtifact, load_model, save_body
from ds_minimodel.jobs.records import Job
from ds_minimodel.models.trainable import LanguageModel, load_into, tensors_under, train_only
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import finished_checkpoints, language_model, text_cost, text_inputs, train_on_source


def jobs(context: Context) -> list[Job]:
    recipe, layout = context.recipe, context.layout
    source = recipe.languages.source
    mini = {"depth": recipe.mini.depth, "new_layers": recipe.mini.new_layers}
    inputs = text_inputs(recipe, "build_mini") | {"mini": mini}
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
    recipe, model, folder = context.recipe, context.layout.model(system), context.layout.build_mini(system)
    body, pack = load_model(model)
    mini, module = mini_model(recipe, body)
    load_into(module, pack.embeddings, "pack.")
    depths, depth = mini.head_depths, recipe.mini.depth
    cost = text_cost(recipe, recipe.build_mini, recipe.source_vocab_size, "build-mini", depths, depth)
    weights, run = train_on_source(context, recipe.build_mini, module, cost, folder, f"build-mini {system.name}")
    learned = lazily(tensors_under(weights, "body."))
    trained = replace(mini, tensors=LazyTensors({**lazily(mini.tensors), **learned}))
    steps = run.schedule.steps
    facts = {"steps": steps, "eflops": run.accounting.eflops_until(steps)}
    context.world.from_main(lambda: save_body(folder / "mini", trained, "mini-model", model, **facts))
