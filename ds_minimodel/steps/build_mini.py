"""Step 1b (MiniPost): train new layers between the bottom of the body and its head, on the source language."""

from functools import partial

from ds_minimodel.engine.loop import train
from ds_minimodel.engine.ranks.world import World
from ds_minimodel.model.artifacts import BodyArtifact, identity, load_body, load_pack, save_body
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.mini import is_layer_from, with_new_layers
from ds_minimodel.model.parameters import load_into, tensors_under, train_only
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.recipe.jobs import Job, Layout, inputs_hash
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.training import (
    finished_checkpoints,
    masked_lm_cost,
    masked_lm_run,
    masked_lm_sampler,
    micro_batches,
)
from ds_minimodel.systems import System


def jobs(recipe: Recipe, layout: Layout) -> list[Job]:
    source = recipe.languages.source
    inputs = {
        "seed": recipe.seed,
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
            partial(_build, recipe, layout, system),
            finished_checkpoints(layout.build_mini(system)),
        )
        for system in recipe.chosen_systems
        if system.builds_mini
    ]


def mini_model(recipe: Recipe, body: BodyArtifact) -> tuple[BodyArtifact, MaskedLanguageModel]:
    """The mini-model with untrained new layers over a body, and the model of step 1b, in which they alone train."""
    depth = recipe.mini.depth
    mini = with_new_layers(body, depth, recipe.mini.new_layers, recipe.seed)
    module = MaskedLanguageModel(mini.config, recipe.source_vocab_size)
    load_into(module, mini.tensors, "body.")
    train_only(module, lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth))
    return mini, module


def _build(recipe: Recipe, layout: Layout, system: System, world: World) -> None:
    section, source, folder = recipe.build_mini, recipe.languages.source, layout.build_mini(system)
    sampler = masked_lm_sampler(recipe, section, layout, source, world)
    body = load_body(layout.pretrain(system) / "body")
    pack = load_pack(layout.pretrain(system) / "pack", body.space)
    mini, module = mini_model(recipe, body)
    load_into(module, pack.tensors, "pack.")
    shard(module, world.tensor)
    cost = masked_lm_cost(
        recipe, section, recipe.source_vocab_size, "build-mini", mini.config.head_depths, recipe.mini.depth
    )
    run = masked_lm_run(recipe, section, world, [(section.steps, cost)])
    batches = micro_batches(sampler, run, world)
    weights = train(module, batches, run, world, folder / "run", f"build-mini {system.name}", inputs_hash(folder))
    trained = BodyArtifact(mini.config, {**mini.tensors, **tensors_under(weights, "body.")}, mini.space)
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
