"""Step 2: train a target language's embeddings over a frozen mini-model (or body) -> language pack.

Packs are also kept at the recipe's snapshot steps, from step 0 (as initialised) on, for the training curves.
"""

from ds_minimodel.common.files import read_manifest
from ds_minimodel.engine.loop import train
from ds_minimodel.jobs import Job, inputs_hash
from ds_minimodel.model.artifacts import PackArtifact, identity, load_body, load_pack, plug, save_pack
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.mini import prefix
from ds_minimodel.model.parameters import load_into, train_only
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.steps.initial import first_pack, initial_inputs
from ds_minimodel.steps.training import masked_lm_cost, masked_lm_run, masked_lm_sampler, micro_batches
from ds_minimodel.systems import BODY_OF


def jobs(recipe, layout):
    source, found = recipe.languages.source, []
    for system in recipe.systems:
        settings = recipe.adapt.model_dump(exclude={"initialisation", "word_vectors", "dictionaries"})
        inputs = {
            "seed": recipe.seed,
            "adapt": settings,
            "blocks": recipe.data.blocks,
            "precision": recipe.engine.precision,
        }
        if system in ("minijoint", "multijoint"):
            inputs["depth"] = recipe.mini.depth
        parents = [layout.pretrain(BODY_OF[system]), layout.tokenizer(source)]
        parents += [layout.build_mini()] if system == "minipost" else []
        for language in recipe.languages.targets:
            found.append(
                Job(
                    layout.adapt(system, language),
                    {**inputs, "language": language, **initial_inputs(recipe, language)},
                    (*parents, layout.tokenizer(language), layout.tokens(language)),
                    lambda world, system=system, language=language: _adapt(recipe, layout, system, language, world),
                )
            )
    return found


def _adapt(recipe, layout, system, language, world):
    section, folder = recipe.adapt, layout.adapt(system, language)
    sampler = masked_lm_sampler(recipe, section, layout, language, world)
    mini_folder = layout.build_mini() / "mini" if system == "minipost" else layout.pretrain(BODY_OF[system]) / "body"
    source_folder = layout.pretrain(BODY_OF[system]) / "pack"
    mini = frozen_model(recipe, load_body(mini_folder), system)
    facts = {
        "initialisation": section.initialisation,
        "parents": {"body": identity(mini_folder), "source": identity(source_folder)},
    }
    first_folder = folder / "snapshots" / "step-00000000"
    source = load_pack(source_folder, mini.space)
    world.from_main(lambda: _save_first(recipe, layout, language, mini, source, first_folder, facts))
    initial = load_pack(first_folder, mini.space)
    facts |= {name: read_manifest(first_folder)[name] for name in ("rows_copied", "rows_combined")}
    module = MaskedLanguageModel(mini.config, sampler.store.vocab_size)
    load_into(module, mini.tensors, "body.")
    plug(module, initial)
    train_only(module, lambda name: trains_in_adapt(name, section))
    shard(module, world.tensor)

    scheduled = system == "multijoint" and section.depth_schedule
    run = masked_lm_run(recipe, section, world, _phases(recipe, sampler.store.vocab_size, mini.config, scheduled))
    batches = micro_batches(sampler, run, world)

    def save(step, weights, target):
        tensors = initial.tensors | {name.removeprefix("pack."): tensor for name, tensor in weights.items()}
        pack = PackArtifact(language, tensors, mini.space, step, run.accounting.flops_until(step)[0] / 1e18)
        world.from_main(lambda: save_pack(target, pack, layout.tokenizer(language), **facts))

    weights = train(
        module,
        _at_scheduled_depth(batches, section) if scheduled else batches,
        run,
        world,
        folder / "run",
        f"adapt {system} {language}",
        inputs_hash(folder),
        section.snapshots()[1:-1],
        lambda step, weights: save(step, weights, folder / "snapshots" / f"step-{step:08}"),
    )
    save(run.schedule.steps, weights, folder / "pack")


def _save_first(recipe, layout, language, mini, source, out, facts):
    """The pack of step 0, with what else trains as the mini-model has it; a run that is resumed finds it made."""
    if out.exists():
        return
    first = first_pack(recipe, layout, language, source.tensors)
    trained = {
        f"body.{name}": tensor for name, tensor in mini.tensors.items() if trains_in_adapt(f"body.{name}", recipe.adapt)
    }
    save_pack(
        out,
        PackArtifact(language, first.tensors | trained, mini.space),
        layout.tokenizer(language),
        rows_copied=first.rows_copied,
        rows_combined=first.rows_combined,
        **facts,
    )


def frozen_model(recipe, body, system):
    """What embeddings are trained over: the mini-model in `body`, or all of it for the baselines and MiniPost."""
    if system == "minijoint" or (system == "multijoint" and not recipe.adapt.depth_schedule):
        return prefix(body, recipe.mini.depth)
    return body


def trains_in_adapt(name, section):
    """Whether step 2 trains the model's parameter of this name."""
    if name.startswith("pack."):
        return name == "pack.tokens" or section.train_output_bias
    return (name == "body.positions" and section.train_positions) or (
        name.startswith("body.embedding_norm.") and section.train_embedding_norm
    )


def _phases(recipe, vocab_size, config, scheduled):
    """(steps, Cost of one step) for each depth that step 2 trains at."""
    section = recipe.adapt
    if not scheduled:
        return [(section.steps, masked_lm_cost(recipe, section, vocab_size, "adapt", config.head_depths))]
    depths = [section.depth_at(step) for step in range(section.steps)]
    return [
        (depths.count(depth), masked_lm_cost(recipe, section, vocab_size, "adapt", (depth,)))
        for depth, _ in section.depth_schedule
    ]


def _at_scheduled_depth(batches, section):
    """The batches of a step with the depth that the schedule gives it.

    What trains stays the same over a switch of depth, so the optimizer's state goes on untouched.
    """
    return lambda step: [{**batch, "depth": section.depth_at(step)} for batch in batches(step)]
