"""Step 2: train a target language's embeddings over a frozen (mini-)body, or beside its LoRA or
weights -> pack.

Packs are also kept at the recipe's snapshot steps, from step 0 (as initialised) on, for the
training curves.
"""

import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from ds_minimodel.artifacts.adaptation import keep_rows, load_adaptation, plug, save_adaptation
from ds_minimodel.artifacts.mini import prefix
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, load_body, load_model
from ds_minimodel.common.files import read_artifact
from ds_minimodel.common.names import Name
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.config.flops import adapt_step_flops
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.steps import Adapt
from ds_minimodel.config.systems import SYSTEMS, System
from ds_minimodel.data.store import StoreManifest
from ds_minimodel.models import trainable
from ds_minimodel.models.body import BASE_ROWS
from ds_minimodel.models.low_rank import add_low_rank, is_low_rank
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.first_pack import first_pack
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.records import Job
from ds_minimodel.pipeline.training import (
    TextStepConfig,
    WholeBody,
    finished_checkpoints,
    held_out_evaluation,
    language_model,
    samples_of,
    snapshot_folder,
    text_run,
    text_sampler,
    train_job,
    whole_model,
)
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.training.checkpoints.storage import newest_first, step_of
from ds_minimodel.training.loop import Snapshots
from ds_minimodel.training.run import Run

PENALTY_TOKENS = (
    16_384  # of the source's text; their states take 36 MiB at a width of 576 where all are read
)
PENALTY_ROWS = 1024  # of scores at once


class AdaptConfig(TextStepConfig):
    """A job of step 2. depth: layers that it runs."""

    section = "adapt"
    training: Adapt
    name: str
    depth: int
    language: Name

    @property
    def system(self) -> System:
        return SYSTEMS[self.name]

    @classmethod
    def of_system(cls, recipe: Recipe, system: System, language: str) -> Self:
        """The part of a recipe that step 2 of a system reads in a language."""
        section = recipe.adapt.of(system, chats=language in recipe.data.chats)
        depth = recipe.adapt_depth(system)
        return cls.of(recipe, training=section, name=system.name, depth=depth, language=language)


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    layout = context.layout
    source = recipe.languages.source
    listed = []
    for system, language in product(recipe.chosen_systems, recipe.languages.targets):
        step = AdaptConfig.of_system(recipe, system, language)
        folder = layout.adapt(system, language)
        section = step.training
        stable_steps = step.training.lr_schedule.stable_steps
        parents = [layout.pretrain(system), layout.tokenizer(source), layout.tokenizer(language)]
        parents += [layout.build_mini(system)] if system.builds_mini else []
        reads_source = section.reads_source and not recipe.learns_from_pairs
        parents += map(layout.tokens, [language, source] if reads_source else [language])
        parents += [layout.own_replay()] if section.replays_own else []
        parents += [layout.chats(language)] if language in recipe.data.chats else []
        parents += [layout.pairs(language)] if section.aligns else []
        make = partial(_adapt, context, step)
        clean_up = finished_checkpoints(folder, stable_steps)
        grows = "adapt" if stable_steps else ""
        go_back = partial(_go_back, section, folder)
        listed.append(Job(folder, step.recorded(), parents, make, clean_up, grows, go_back))
    return listed


def _go_back(section: Adapt, folder: Path, inputs: dict[str, Any]) -> None:
    """Remove what a run with the steps of `inputs` has left that one of more steps does not
    make.
    """
    shorter = section.model_copy(update={"steps": inputs["adapt"]["steps"]})
    stable_steps = shorter.lr_schedule.stable_steps
    finished_checkpoints(folder, stable_steps)()
    for step in shorter.snapshots():
        if step > stable_steps:
            shutil.rmtree(snapshot_folder(folder, step), ignore_errors=True)


def _adapt(context: Context, step: AdaptConfig) -> None:
    layout = context.layout
    world = context.world
    system = step.system
    section = step.training
    language = step.language
    folder = layout.adapt(system, language)
    vocabulary = open_tokenizer(layout.tokenizer(language)).vocabulary
    num_base = vocabulary.num_base
    body, source = load_model(layout.model(system))
    work = step.work(body.config, vocabulary.size, num_base)
    run = text_run(step, world, adapt_step_flops(system, step.depth, section, work))
    over = load_body(layout.build_mini(system) / "mini") if system.builds_mini else body
    dtype = DTYPES[run.execution.precision]
    frozen, module = adapted_model(step, over, vocabulary.size, num_base, dtype, world.device)
    first_folder = snapshot_folder(folder, 0)
    world.broadcast_from_rank0(lambda: _save_first(context, step, body, source, first_folder))
    initial = load_adaptation(first_folder, frozen.space, language, 0)
    plug(module, initial)
    keep_rows(module, source, initial.num_base)
    split_model(module, world.tensor)
    if isinstance(module, trainable.LanguageModel):  # whose predictions can be held where they were
        module.replay_kl = section.replay_kl
        module.replays_in_every_batch = step.engine.zero_stage == 3
        if section.new_token_penalty:
            module.new_token_penalty = penalty_of_source(context, step, run)

    def learned(step: int, weights: trainable.Tensors) -> Adaptation:
        embeddings = {**initial.embeddings, **trainable.tensors_under(weights, "pack.")}
        update = trainable.tensors_under(weights, "body.")
        eflops = run.accounting.eflops_until(step)
        return replace(initial, embeddings=embeddings, update=update, steps=step, eflops=eflops)

    def save(step: int, weights: trainable.Tensors, target: Path) -> None:
        world.broadcast_from_rank0(
            lambda: save_adaptation(
                target,
                learned(step, weights),
                layout.tokenizer(language),
                body.config,
                ends=ends,
                initialisation=section.initialisation,
            )
        )

    num_layers = body.config.num_layers
    chats = layout.chats(language)
    ends = read_artifact(chats, StoreManifest).ends if language in step.data.chats else []
    if not section.steps and not step.trained_by.predicts_tokens:
        save(0, {}, folder / "pack")  # nothing has been made yet that lines would train toward
        return

    @functools.cache
    def whole() -> trainable.Model:
        return whole_model(world, run, prefix(body, num_layers), initial, source)

    def plugged(trained: nn.Module, weights: Callable[[], trainable.Tensors]) -> nn.Module:
        """A model with the whole body and the pack as it is: the one that trains, where it has all
        of it.
        """
        if not system.builds_mini and frozen.config.num_layers == num_layers:
            return trained
        plug(whole(), learned(0, weights()))
        return whole()

    world.broadcast_from_rank0(lambda: _go_back_to_snapshots(section, folder))
    evaluated = WholeBody(num_layers, frozen.config.num_layers, section.snapshots(), plugged)
    weights = train_job(
        module,
        samples_of(context, step, language),
        run,
        world,
        folder,
        f"adapt {system.name} {language}",
        grows="adapt" if run.schedule.stable_steps else "",
        snapshots=Snapshots(
            steps=section.snapshots()[1:-1],
            take=lambda step, weights: save(step, weights, snapshot_folder(folder, step)),
        ),
        evaluation=held_out_evaluation(context, step, language, run, evaluated),
    )
    save(run.schedule.steps, weights, folder / "pack")


def _go_back_to_snapshots(section: Adapt, folder: Path) -> None:
    """Remove the checkpoints after a snapshot that is gone: a run that goes on from one would not
    make it again.
    """
    gone = [
        step for step in section.snapshots()[1:-1] if not snapshot_folder(folder, step).is_dir()
    ]
    if gone and any(
        step_of(name) >= gone[0] for name in newest_first(folder / "run" / "checkpoints")
    ):
        finished_checkpoints(folder, gone[0] - 1)()


def _save_first(
    context: Context, step: AdaptConfig, body: BodyArtifact, source: Adaptation, out: Path
) -> None:
    """Save what step 0 has: the language as it starts; a resumed run has it already."""
    if out.exists():
        return
    target = open_tokenizer(context.layout.tokenizer(step.language))
    of_source = open_tokenizer(context.layout.tokenizer(step.source))
    method = step.training.initialisation
    first = first_pack(
        method,
        step.seed,
        of_target=target,
        of_source=of_source,
        source=dict(source.embeddings),
        pairs=PairCorpus(context.layout.pairs(step.language)).pairs if step.training.aligns else (),
    )
    pack = body.adaptation(step.language, first, num_base=target.vocabulary.num_base)
    save_adaptation(out, pack, context.layout.tokenizer(step.language), initialisation=method)


def adapted_model(
    step: AdaptConfig,
    body: BodyArtifact,
    vocab_size: int,
    num_base: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[BodyArtifact, trainable.Model]:
    """The frozen body that embeddings are trained over, and the model of step 2 with it and a pack
    of `vocab_size`, whose rows are to be put in. num_base: of them the first that are the base's,
    and do not train.

    body: the mini-model of step 1b where the system builds one, else the system's body, of which
    the layers up to the system's depth are taken. dtype: of what is frozen.
    """
    frozen = prefix(body, step.depth)
    with torch.device("meta"):
        module = language_model(
            step.engine, frozen.config, frozen.head_depths, vocab_size, num_base
        )
    trainable.train_only(module, lambda name: trains_in_adapt(name, step.system))
    # At ZeRO 3 a rank keeps only its parts of frozen weights, which are read later; a plan (meta)
    # reads none.
    trainable.materialise(
        module, dtype, device, defer_frozen=step.engine.zero_stage == 3 and device.type != "meta"
    )
    trainable.load_into(module, frozen.tensors, "body.")
    if step.system.trains == "low-rank":
        add_low_rank(module.body, step.training.rank, step.seed)
    return frozen, module


def trains_in_adapt(name: str, system: System) -> bool:
    """Whether step 2 of a system trains the model's parameter of this name."""
    if name.startswith("pack."):
        return not name.startswith(f"pack.{BASE_ROWS}")
    return system.trains == "all" or is_low_rank(name)


def penalty_of_source(context: Context, step: AdaptConfig, run: Run) -> trainable.NewTokenPenalty:
    """The NewTokenPenalty of an added language, by the first samples of the source's text: the same
    on all ranks.

    The whole body is in memory beside the one that trains while it reads. Its FLOPs, those of some
    steps, and the penalty's, some thousandths of each step, are not in the costs.
    """
    world = context.world
    section = step.training
    body, source = load_model(context.layout.model(step.system))
    model = whole_model(world, run, body, source)
    (head,) = model.body.heads.values()
    sampler = text_sampler(context, step, step.source)
    states = []
    log_sums = []
    last = max(1, PENALTY_TOKENS // section.seq_length)
    with torch.no_grad():
        for first in range(0, last, run.execution.micro_batch_size):
            rows = sampler.batch(first, min(last, first + run.execution.micro_batch_size))
            batch = trainable.to_tensors(rows, world.device)
            (x_BMH,), table = trainable.encode(model.pack, model.body, batch)
            x_PH = head(x_BMH.flatten(0, 1)[batch["targets"].flatten() != IGNORED])
            states.append(x_PH)
            log_sums += [model.pack.log_sums(x_RH, table) for x_RH in x_PH.split(PENALTY_ROWS)]
    targets = int(step.trained_by.share_read(section) * section.seq_length)
    return trainable.NewTokenPenalty(
        torch.cat(states), torch.cat(log_sums), section.new_token_penalty, max(1, targets // 4)
    )
