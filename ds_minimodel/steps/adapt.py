"""Step 2: train a target language's embeddings over a frozen mini-model (or body) -> language pack.

Packs are also kept at the recipe's snapshot steps, from step 0 (as initialised) on, for the training curves.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import Count, read_artifact
from ds_minimodel.jobs.records import Job, inputs_hash
from ds_minimodel.models.artifacts import (
    BodyArtifact,
    PackArtifact,
    PackManifest,
    identity,
    keep_rows,
    load_body,
    load_pack,
    plug,
    save_pack,
)
from ds_minimodel.models.body import KEPT
from ds_minimodel.models.low_rank import add_low_rank, is_low_rank, merged, replaced
from ds_minimodel.models.mini import prefix
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import LanguageModel, Tensors, load_into, train_only
from ds_minimodel.recipe.flops import adapt_step_flops, step_work
from ds_minimodel.recipe.schema import Adapt, Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.first_pack import first_pack, initial_inputs
from ds_minimodel.steps.guard import source_guard
from ds_minimodel.steps.training import (
    WholeBody,
    body_of,
    checkpoints_of,
    finished_checkpoints,
    held_out_evaluation,
    held_out_sampler,
    language_model,
    micro_batches,
    rehearsal_of,
    snapshot_folder,
    text_inputs,
    text_run,
    text_sampler,
    text_schedule,
    whole_model,
)
from ds_minimodel.training.checkpoints.best import BestWeights
from ds_minimodel.training.loop import train


class FirstManifest(PackManifest):
    """Manifest of the pack of step 0."""

    rows_copied: Count
    rows_combined: Count


def jobs(context: Context) -> list[Job]:
    recipe, layout = context.recipe, context.layout
    section, source, listed = recipe.adapt, recipe.languages.source, []
    trunk, rehearsal = text_schedule(section).trunk, rehearsal_of(recipe)
    for system in recipe.chosen_systems:
        inputs = text_inputs(recipe, "adapt") | ({"depth": recipe.mini.depth} if system.has_several_heads else {})
        inputs |= {"rate": section.rates[system.name]} if system.name in section.rates else {}
        inputs |= {"rank": section.rank} if system.trains == "low-rank" else {}
        inputs |= {"strength": section.strength} if system.trains and section.strength != 1 else {}
        inputs |= {"guard": section.guard} if recipe.is_guarded(system) else {}
        inputs |= {"old_rows": section.old_rows} if section.old_rows == "trained" else {}
        inputs |= {"rehearsal": identity(rehearsal)} if rehearsal else {}
        inputs |= {"schedule": f"constant, decay {section.decay}"} if trunk else {}
        if section.keep == "best":
            inputs |= {"keep": {"every": section.held_out_every, "patience": section.patience}}
        parents = [layout.pretrain(system), layout.tokenizer(source)]
        parents += [layout.build_mini(system)] if system.builds_mini else []
        for language in recipe.languages.targets:
            folder = layout.adapt(system, language)
            read = [language, *([source] if recipe.replays_text or recipe.is_guarded(system) else [])]
            listed.append(
                Job(
                    folder,
                    {**inputs, "language": language, **initial_inputs(recipe, language)},
                    (*parents, layout.tokenizer(language), *map(layout.tokens, read)),
                    partial(_adapt, context, system, language),
                    finished_checkpoints(folder, trunk),
                    grows="adapt" if trunk else "",
                    go_back=partial(_go_back, section, folder),
                    advice={"adapt.steps": "they may grow where adapt.schedule is constant; "},
                )
            )
    return listed


def _go_back(section: Adapt, folder: Path, inputs: dict[str, Any]) -> None:
    """Remove what a run with the steps of `inputs` has left that one of more steps does not make."""
    shorter = section.model_copy(update={"steps": inputs["adapt"]["steps"]})
    trunk = text_schedule(shorter).trunk
    finished_checkpoints(folder, trunk)()
    for step in shorter.snapshots():
        if step > trunk:
            shutil.rmtree(snapshot_folder(folder, step), ignore_errors=True)


def _adapt(context: Context, system: System, language: str) -> None:
    recipe, layout, world = context.recipe, context.layout, context.world
    section, folder = recipe.adapt, layout.adapt(system, language)
    sampler = text_sampler(context, section, language, section.replay)
    if section.keep == "best" and held_out_sampler(context, section, language) is None:
        raise UserError(f"adapt.keep best: no document of {language} is held out; give more text or data.held_out")
    vocab_size = sampler.reader.store.vocabulary.size
    body_folder = layout.build_mini(system) / "mini" if system.builds_mini else layout.pretrain(system) / "body"
    source_folder = layout.pretrain(system) / "pack"
    cost = adapt_step_flops(recipe, system, step_work(recipe, section, vocab_size, kept=recipe.frozen_rows))
    run = text_run(recipe, section, world, cost, section.rates.get(system.name))
    frozen, module = adapted_model(recipe, load_body(body_folder), system, vocab_size)
    facts: dict[str, Any] = {
        "initialisation": section.initialisation,
        "parents": {"body": identity(body_folder), "source": identity(source_folder)},
    }
    first_folder = snapshot_folder(folder, 0)
    source = load_pack(source_folder, frozen.space)
    own = {f"body.{name}": tensor for name, tensor in frozen.tensors.items() if name in replaced(module)}
    world.from_main(lambda: _save_first(context, language, own, source, first_folder, facts))
    initial, manifest = load_pack(first_folder, frozen.space, language, 0), read_artifact(first_folder, FirstManifest)
    facts |= {"rows_copied": manifest.rows_copied, "rows_combined": manifest.rows_combined}
    plug(module, initial)
    keep_rows(module, source, initial.kept)
    split_model(module, world.tensor)
    if recipe.is_guarded(system):
        module.guard = source_guard(context, system, run, source)

    def pack_of(step: int, weights: Tensors) -> PackArtifact:
        trained = merged(weights, frozen.tensors, section.strength if system.trains else 1.0)
        tensors = initial.tensors | {name.removeprefix("pack."): tensor for name, tensor in trained.items()}
        eflops = run.accounting.eflops_until(step)
        return replace(initial, tensors=tensors, steps=step, eflops=eflops)

    def save(step: int, weights: Tensors, target: Path) -> None:
        world.from_main(lambda: save_pack(target, pack_of(step, weights), layout.tokenizer(language), **facts))

    num_layers = body_of(recipe, system)[0].num_layers

    def plugged(trained: nn.Module, weights: Callable[[], Tensors]) -> nn.Module:
        """A model with the whole body and the pack as it is: the one that trains, where it has all of it."""
        if not system.builds_mini and frozen.config.num_layers == num_layers:
            return trained
        whole = prefix(load_body(layout.pretrain(system) / "body"), num_layers)
        return whole_model(recipe, world, run, whole, pack_of(0, weights()), source)

    body = WholeBody(num_layers, frozen.config.num_layers, section.snapshots(), plugged)

    trunk, steps = run.schedule.trunk, run.schedule.steps
    job = inputs_hash(folder, "adapt" if trunk else "")
    best = BestWeights(checkpoints_of(folder), job, world, trunk) if section.keep == "best" else None
    evaluation = held_out_evaluation(context, section, language, run, body, best, section.patience)
    weights = train(
        module,
        micro_batches(sampler, run, world),
        run,
        world,
        folder / "run",
        f"adapt {system.name} {language}",
        job,
        section.snapshots()[1:-1],
        lambda step, weights: save(step, weights, snapshot_folder(folder, step)),
        evaluation,
    )
    if best is not None:
        facts["ended"] = min((step for step in evaluation.steps if evaluation.is_over(step)), default=steps)
        steps, weights = best.load()
    save(steps, weights, folder / "pack")


def _save_first(
    context: Context, language: str, own: Tensors, source: PackArtifact, out: Path, facts: dict[str, Any]
) -> None:
    """Save the pack of step 0, with `own`, what else trains as the body has it; a resumed run has it already."""
    if out.exists():
        return
    first = first_pack(context, language, source.tensors)
    save_pack(
        out,
        PackArtifact(
            language,
            first.tensors | own,
            source.space,
            kept=context.recipe.frozen_rows,
            kept_of=facts["parents"]["source"] if context.recipe.frozen_rows else "",
        ),
        context.layout.tokenizer(language),
        rows_copied=first.rows_copied,
        rows_combined=first.rows_combined,
        **facts,
    )


def adapted_model(
    recipe: Recipe, body: BodyArtifact, system: System, vocab_size: int
) -> tuple[BodyArtifact, LanguageModel]:
    """The frozen body that embeddings are trained over, and the model of step 2 with it and a pack of `vocab_size`.

    body: the mini-model of step 1b where the system builds one, else the system's body, of which the layers up to
    the system's depth are taken.
    """
    frozen = prefix(body, system.adapt_depth(recipe.model.num_layers, recipe.mini))
    module = language_model(recipe, frozen.config, frozen.head_depths, vocab_size, recipe.frozen_rows)
    load_into(module, frozen.tensors, "body.")
    if system.trains == "low-rank":
        add_low_rank(module.body, recipe.adapt.rank, recipe.seed)
    train_only(module, lambda name: trains_in_adapt(name, recipe.adapt, system))
    return frozen, module


def trains_in_adapt(name: str, section: Adapt, system: System) -> bool:
    """Whether step 2 of a system trains the model's parameter of this name."""
    if name.startswith(f"pack.{KEPT}"):
        return False
    if name.startswith("pack."):
        return name != "pack.bias" or section.train_output_bias
    if system.trains == "all" or is_low_rank(name):
        return True
    return (name == "body.positions" and section.train_positions) or (
        name.startswith("body.embedding_norm.") and section.train_embedding_norm
    )
