"""Step 1b (MiniPost): train new layers between the body's first layers and its head.

They train on the source language.
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
    """Settings of a job of step 1b."""

    section = "build_mini"
    training: BuildMini
    mini: Mini

    @classmethod
    def of_recipe(cls, recipe: Recipe) -> Self:
        """Return the part of a recipe that step 1b reads."""
        return cls.of(recipe, training=recipe.build_mini, mini=recipe.mini)


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that build a mini-model, one a system that needs one."""
    layout = context.layout
    source = recipe.languages.source
    step = BuildMiniConfig.of_recipe(recipe)
    read = [layout.tokens(source)]
    if recipe.learns_from_pairs:
        targets = recipe.languages.targets
        read = [*map(layout.tokens, targets), *map(layout.targets, targets)]
    return [
        Job(
            folder=layout.build_mini(system),
            inputs=step.recorded(),
            parents=(layout.pretrain(system), layout.tokenizer(source), *read),
            make=partial(_build, context, step, system),
            clean_up=finished_checkpoints(layout.build_mini(system)),
        )
        for system in recipe.chosen_systems
        if system.builds_mini
    ]


def mini_model(
    step: BuildMiniConfig, body: BodyArtifact, vocab_size: int
) -> tuple[BodyArtifact, Model]:
    """Return the mini-model with untrained new layers over a body, and the model of step 1b.

    In the model of step 1b the new layers alone train.
    """
    depth = step.mini.depth
    copies_last = step.training.initialisation == "last"
    mini = with_new_layers(
        body,
        depth=depth,
        new_layers=step.mini.new_layers,
        seed=step.seed,
        copies_last=copies_last,
    )
    module = language_model(step.engine, mini.config, mini.head_depths, vocab_size)
    load_into(module, mini.tensors, "body.")

    def is_new(name: str) -> bool:
        return name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth)

    train_only(module, is_new)
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
    label = f"build-mini {system.name}"
    weights, run = train_on_source(context, step, module, cost, folder, label)
    learned = lazy_entries(tensors_under(weights, "body."))
    trained = replace(mini, tensors=LazyTensors({**lazy_entries(mini.tensors), **learned}))
    steps = run.schedule.steps
    facts = {"steps": steps, "eflops": run.accounting.eflops_until(steps)}
    context.world.broadcast_from_rank0(
        lambda: save_body(folder / "mini", trained, "mini-model", model, **facts)
    )
