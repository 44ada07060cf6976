"""Step 1b (MiniPost): train new layers between the bottom of the body and its head, on the source
language.
"""

from dataclasses import replace
from functools import partial
from typing import Self

from ds_minimodel.artifacts.mini import is_layer_from, with_new_layers
from ds_minimodel.artifacts.models import BodyArtifact, load_model, save_body
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.steps import BuildMini
from ds_minimodel.config.systems import Mini, System
from ds_minimodel.hf.lazy import LazyTensors, lazy_entries
from ds_minimodel.models.flops import step_flops
from ds_minimodel.models.trainable import Model, load_into, tensors_under, train_only
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.records import Job
from ds_minimodel.pipeline.training import (
    TextStepConfig,
    finished_checkpoints,
    language_model,
    train_on_source,
)


class BuildMiniConfig(TextStepConfig):
    """A job of step 1b."""

    section = "build_mini"
    training: BuildMini
    mini: Mini

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> Self:
        """The part of a recipe that step 1b reads."""
        return cls.of(recipe, training=recipe.build_mini, mini=recipe.mini)


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    source = recipe.languages.source
    step = BuildMiniConfig.of_recipe(recipe)
    read = [layout.tokens(source)]
    if recipe.learns_from_pairs:
        targets = recipe.languages.targets
        read = [*map(layout.tokens, targets), *map(layout.targets, targets)]
    return [
        Job(
            layout.build_mini(system),
            step.recorded(),
            (layout.pretrain(system), layout.tokenizer(source), *read),
            partial(_build, context, step, system),
            finished_checkpoints(layout.build_mini(system)),
        )
        for system in recipe.chosen_systems
        if system.builds_mini
    ]


def mini_model(
    step: BuildMiniConfig, body: BodyArtifact, vocab_size: int
) -> tuple[BodyArtifact, Model]:
    """The mini-model with untrained new layers over a body, and the model of step 1b, in which they
    alone train.
    """
    depth = step.mini.depth
    number = step.mini.new_layers
    copies_last = step.training.initialisation == "last"
    mini = with_new_layers(body, depth, number, step.seed, copies_last=copies_last)
    module = language_model(step.engine, mini.config, mini.head_depths, vocab_size)
    load_into(module, mini.tensors, "body.")
    train_only(
        module,
        lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth),
    )
    return mini, module


def _build(context: Context, step: BuildMiniConfig, system: System) -> None:
    model = context.layout.model(system)
    folder = context.layout.build_mini(system)
    body, pack = load_model(model)
    mini, module = mini_model(step, body, pack.rows)
    load_into(module, pack.embeddings, "pack.")
    cost = step_flops(
        "build-mini", step.work(body.config, pack.rows), mini.head_depths, step.mini.depth
    )
    weights, run = train_on_source(context, step, module, cost, folder, f"build-mini {system.name}")
    learned = lazy_entries(tensors_under(weights, "body."))
    trained = replace(mini, tensors=LazyTensors({**lazy_entries(mini.tensors), **learned}))
    steps = run.schedule.steps
    facts = {"steps": steps, "eflops": run.accounting.eflops_until(steps)}
    context.world.broadcast_from_rank0(
        lambda: save_body(folder / "mini", trained, "mini-model", model, **facts)
    )
