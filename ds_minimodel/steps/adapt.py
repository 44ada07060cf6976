"""Step 2: train a target language's embeddings over a frozen mini-model (or body) -> language pack.

Packs are also kept at the recipe's snapshot steps, from step 0 (as initialised) on, for the training curves.
"""

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ds_minimodel.artifacts.adaptation import AdaptationManifest, keep_rows, load_adaptation, plug, save_adaptation
from ds_minimodel.artifacts.mini import prefix
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, identity, load_body, load_model
from ds_minimodel.common.files import Count, read_artifact
from ds_minimodel.jobs.records import Job, inputs_hash
from ds_minimodel.models.body import KEPT
from ds_minimodel.models.low_rank import add_low_rank, is_low_rank
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import LanguageModel, Tensors, load_into, materialise, tensors_under, train_only
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.recipe.flops import adapt_step_flops, step_work
from ds_minimodel.recipe.schema import Adapt, Recipe
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.first_pack import first_pack, initial_inputs
from ds_minimodel.steps.guard import source_guard
from ds_minimodel.steps.training import (
    WholeBody,
    body_of,
    finished_checkpoints,
    held_out_evaluation,
    language_model,
    micro_batches,
    snapshot_folder,
    text_inputs,
    text_run,
    text_sampler,
    text_schedule,
    whole_model,
)
from ds_minimodel.training.loop import train


class FirstManifest(AdaptationManifest):
    """Manifest of the pack of step 0."""

    rows_copied: Count
    rows_combined: Count


def jobs(context: Context) -> list[Job]:
    recipe, layout = context.recipe, context.layout
    section, source, listed = recipe.adapt, recipe.languages.source, []
    trunk = text_schedule(section).trunk
    rehearsal = [layout.rehearsal()] if recipe.rehearses else []
    for system in recipe.chosen_systems:
        inputs = text_inputs(recipe, "adapt") | ({"depth": recipe.mini.depth} if system.has_several_heads else {})
        inputs |= {"rate": section.rates[system.name]} if system.name in section.rates else {}
        inputs |= {"rank": section.rank} if system.trains == "low-rank" else {}
        inputs |= {"guard": section.guard} if recipe.is_guarded(system) else {}
        inputs |= {"old_rows": section.old_rows} if section.old_rows == "trained" else {}
        inputs |= {"schedule": f"constant, decay {section.decay}"} if trunk else {}
        parents = [layout.pretrain(system), layout.tokenizer(source)]
        parents += [layout.build_mini(system)] if system.builds_mini else []
        for language in recipe.languages.targets:
            folder = layout.adapt(system, language)
            read = [language, *([source] if recipe.replays_text or recipe.is_guarded(system) else [])]
            listed.append(
                Job(
                    folder,
                    {**inputs, "language": language, **initial_inputs(recipe, language)},
                    (*parents, layout.tokenizer(language), *map(layout.tokens, read), *rehearsal),
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
    vocab_size = sampler.reader.store.vocabulary.size
    model = layout.model(system)
    body, source = load_model(model)
    body_folder = layout.build_mini(system) / "mini" if system.builds_mini else model
    cost = adapt_step_flops(recipe, system, step_work(recipe, section, vocab_size, kept=recipe.frozen_rows))
    run = text_run(recipe, section, world, cost, section.rates.get(system.name))
    over = load_body(body_folder) if system.builds_mini else body
    dtype = DTYPES[run.execution.precision]
    frozen, module = adapted_model(recipe, over, system, vocab_size, dtype, world.device)
    facts: dict[str, Any] = {
        "initialisation": section.initialisation,
        "parents": {"body": identity(body_folder), "source": identity(model)},
    }
    first_folder = snapshot_folder(folder, 0)
    world.from_main(lambda: _save_first(context, language, body, source, first_folder, facts))
    initial = load_adaptation(first_folder, frozen.space, language, 0)
    manifest = read_artifact(first_folder, FirstManifest)
    facts |= {"rows_copied": manifest.rows_copied, "rows_combined": manifest.rows_combined}
    plug(module, initial)
    keep_rows(module, source, initial.kept)
    split_model(module, world.tensor)
    module.replay_kl = section.replay_kl if system.trains == "low-rank" else 0.0
    if recipe.is_guarded(system):
        module.guard = source_guard(context, system, run)

    def learned(step: int, weights: Tensors) -> Adaptation:
        embeddings = {**initial.embeddings, **tensors_under(weights, "pack.")}
        update, eflops = tensors_under(weights, "body."), run.accounting.eflops_until(step)
        return replace(initial, embeddings=embeddings, update=update, steps=step, eflops=eflops)

    def save(step: int, weights: Tensors, target: Path) -> None:
        tokenizer = layout.tokenizer(language)
        world.from_main(lambda: save_adaptation(target, learned(step, weights), tokenizer, body.config, **facts))

    num_layers = body_of(recipe, system)[0].num_layers

    @functools.cache
    def whole() -> LanguageModel:
        return whole_model(recipe, world, run, prefix(body, num_layers), initial, source)

    def plugged(trained: nn.Module, weights: Callable[[], Tensors]) -> nn.Module:
        """A model with the whole body and the pack as it is: the one that trains, where it has all of it."""
        if not system.builds_mini and frozen.config.num_layers == num_layers:
            return trained
        plug(whole(), learned(0, weights()))
        return whole()

    evaluated = WholeBody(num_layers, frozen.config.num_layers, section.snapshots(), plugged)
    weights = train(
        module,
        micro_batches(sampler, run, world),
        run,
        world,
        folder / "run",
        f"adapt {system.name} {language}",
        inputs_hash(folder, "adapt" if run.schedule.trunk else ""),
        section.snapshots()[1:-1],
        lambda step, weights: save(step, weights, snapshot_folder(folder, step)),
        held_out_evaluation(context, section, language, run, evaluated),
    )
    save(run.schedule.steps, weights, folder / "pack")


def _save_first(
    context: Context, language: str, body: BodyArtifact, source: Adaptation, out: Path, facts: dict[str, Any]
) -> None:
    """Save what step 0 has: the language as it starts; a resumed run has it already."""
    if out.exists():
        return
    first = first_pack(context, language, {name: rows.float() for name, rows in source.embeddings.items()})
    save_adaptation(
        out,
        body.adaptation(language, first.tensors, kept=context.recipe.frozen_rows),
        context.layout.tokenizer(language),
        rows_copied=first.rows_copied,
        rows_combined=first.rows_combined,
        **facts,
    )


def adapted_model(
    recipe: Recipe, body: BodyArtifact, system: System, vocab_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[BodyArtifact, LanguageModel]:
    """The frozen body that embeddings are trained over, and the model of step 2 with it and a pack of `vocab_size`,
    whose rows are to be put in.

    body: the mini-model of step 1b where the system builds one, else the system's body, of which the layers up to
    the system's depth are taken. dtype: of what is frozen.
    """
    frozen = prefix(body, system.adapt_depth(recipe.model.num_layers, recipe.mini))
    with torch.device("meta"):
        module = language_model(recipe, frozen.config, frozen.head_depths, vocab_size, recipe.frozen_rows)
    train_only(module, lambda name: trains_in_adapt(name, system))
    materialise(module, dtype, device)
    load_into(module, frozen.tensors, "body.")
    if system.trains == "low-rank":
        add_low_rank(module.body, recipe.adapt.rank, recipe.seed)
    return frozen, module


def trains_in_adapt(name: str, system: System) -> bool:
    """Whether step 2 of a system trains the model's parameter of this name."""
    if name.startswith("pack."):
        return not name.startswith(f"pack.{KEPT}")
    return system.trains == "all" or is_low_rank(name)
