"""Step 1b (MiniPost): train new layers between the bottom of the body and its head, on the source language."""

from ds_minimodel.engine.loop import train
from ds_minimodel.jobs import Job, inputs_hash
from ds_minimodel.model.artifacts import BodyArtifact, identity, load_body, load_pack, save_body
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.mini import is_layer_from, with_new_layers
from ds_minimodel.model.parameters import load_into, tensors_under, train_only
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.steps.training import masked_lm_cost, masked_lm_run, masked_lm_sampler, micro_batches


def jobs(recipe, layout):
    if "minipost" not in recipe.systems:
        return []
    inputs = {
        "seed": recipe.seed,
        "build_mini": recipe.build_mini.model_dump(),
        "blocks": recipe.data.blocks,
        "mini": {"depth": recipe.mini.depth, "new_layers": recipe.mini.new_layers},
        "precision": recipe.engine.precision,
    }
    source = recipe.languages.source
    return [
        Job(
            layout.build_mini(),
            inputs,
            (layout.pretrain("bl_base"), layout.tokenizer(source), layout.tokens(source)),
            lambda world: _build(recipe, layout, world),
        )
    ]


def _build(recipe, layout, world):
    section, source, folder = recipe.build_mini, recipe.languages.source, layout.build_mini()
    sampler = masked_lm_sampler(recipe, section, layout, source, world)
    body = load_body(layout.pretrain("bl_base") / "body")
    pack = load_pack(layout.pretrain("bl_base") / "pack", body.space)
    depth = recipe.mini.depth
    mini = with_new_layers(body, depth, recipe.mini.new_layers, recipe.seed)
    module = MaskedLanguageModel(mini.config, sampler.store.vocab_size)
    load_into(module, mini.tensors, "body.")
    load_into(module, pack.tensors, "pack.")
    train_only(module, lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), depth))
    shard(module, world.tensor)
    cost = masked_lm_cost(recipe, section, sampler.store.vocab_size, "build-mini", mini.config.head_depths, depth)
    run = masked_lm_run(recipe, section, world, [(section.steps, cost)])
    weights = train(
        module,
        micro_batches(sampler, run, world),
        run,
        world,
        folder / "run",
        "build-mini minipost",
        inputs_hash(folder),
    )
    trained = BodyArtifact(mini.config, {**mini.tensors, **tensors_under(weights, "body.")}, mini.space)
    world.from_main(
        lambda: save_body(
            folder / "mini",
            trained,
            "mini-model",
            steps=run.steps,
            eflops=run.flops_until(run.steps)[0] / 1e18,
            parents={"body": identity(layout.pretrain("bl_base") / "body")},
        )
    )
