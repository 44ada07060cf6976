"""Step 2: train a target language's embeddings over a frozen (mini-)body.

With some systems a LoRA update of the body, or all of its weights, train too. The result is a
pack. Packs are also kept at the recipe's snapshot steps, from step 0 (as initialised) on, for the
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

from ds_minimodel.artifacts.adaptation import load_adaptation, load_base_rows, plug, save_adaptation
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

# Tokens of the source's text by which new tokens are penalised. Their states take 36 MiB at a
# hidden size of 576 where all are read.
PENALTY_TOKENS = 16_384
PENALTY_ROWS = 1024  # rows of logits that are computed at once


class AdaptConfig(TextStepConfig):
    """Settings of a job of step 2.

    Attributes:
        training: The recipe's section, as the system uses it.
        name: Of the system.
        depth: Count of layers that it runs.
        language: Target language.
    """

    section = "adapt"
    training: Adapt
    name: str
    depth: int
    language: Name

    @property
    def system(self) -> System:
        """The system that is adapted."""
        return SYSTEMS[self.name]

    @classmethod
    def of_system(cls, recipe: Recipe, system: System, language: str) -> Self:
        """Return the part of a recipe that step 2 of a system reads in a language."""
        section = recipe.adapt.of(system, chats=language in recipe.data.chats)
        depth = recipe.adapt_depth(system)
        return cls.of(recipe, training=section, name=system.name, depth=depth, language=language)


def jobs(recipe: Recipe, context: Context) -> list[Job]:
    """Return jobs that adapt a system to a target language each."""
    return [
        _job(recipe, context, system, language)
        for system, language in product(recipe.chosen_systems, recipe.languages.targets)
    ]


def _job(recipe: Recipe, context: Context, system: System, language: str) -> Job:
    layout = context.layout
    source = recipe.languages.source
    step = AdaptConfig.of_system(recipe, system, language)
    folder = layout.adapt(system, language)
    section = step.training
    stable_steps = section.lr_schedule.stable_steps
    parents = [layout.pretrain(system), layout.tokenizer(source), layout.tokenizer(language)]
    if system.builds_mini:
        parents.append(layout.build_mini(system))
    parents.append(layout.tokens(language))
    if section.reads_source and not recipe.learns_from_pairs:
        parents.append(layout.tokens(source))
    if section.replays_own:
        parents.append(layout.own_replay())
    if language in recipe.data.chats:
        parents.append(layout.chats(language))
    if section.aligns:
        parents.append(layout.pairs(language))
    return Job(
        folder=folder,
        inputs=step.recorded(),
        parents=parents,
        make=partial(_adapt, context, step),
        clean_up=finished_checkpoints(folder, stable_steps),
        grows="adapt" if stable_steps else "",
        go_back=partial(_go_back, section, folder),
    )


def _go_back(section: Adapt, folder: Path, inputs: dict[str, Any]) -> None:
    """Remove what a run with the steps of `inputs` has left that a longer one does not make."""
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
    trained_body = body
    if system.builds_mini:
        trained_body = load_body(layout.build_mini(system) / "mini")
    frozen, module = adapted_model(
        step,
        trained_body,
        vocab_size=vocabulary.size,
        num_base=num_base,
        dtype=DTYPES[run.execution.precision],
        device=world.device,
    )
    first_folder = snapshot_folder(folder, 0)
    world.broadcast_from_rank0(lambda: _save_first(context, step, body, source, first_folder))
    initial = load_adaptation(first_folder, frozen.space, language, 0)
    plug(module, initial)
    load_base_rows(module, source, initial.num_base)
    split_model(module, world.tensor)
    # The predictions of a language model can be held where they were.
    if isinstance(module, trainable.LanguageModel):
        module.replay_kl = section.replay_kl
        module.replays_in_every_batch = step.engine.zero_stage == 3
        if section.new_token_penalty:
            module.new_token_penalty = penalty_of_source(context, step, run)

    ends: list[int] = []
    if language in step.data.chats:
        ends = read_artifact(layout.chats(language), StoreManifest).ends

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
    # Without steps nothing has been made that lines would train toward.
    if not section.steps and not step.trained_by.predicts_tokens:
        save(0, {}, folder / "pack")
        return

    @functools.cache
    def whole() -> trainable.Model:
        return whole_model(world, run, prefix(body, num_layers), initial, source)

    def plugged(trained: nn.Module, weights: Callable[[], trainable.Tensors]) -> nn.Module:
        """Return a model with the whole body and the pack as it is.

        It is the one that trains, where that has the whole body.
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
        label=f"adapt {system.name} {language}",
        grows="adapt" if run.schedule.stable_steps else "",
        snapshots=Snapshots(
            steps=section.snapshots()[1:-1],
            take=lambda step, weights: save(step, weights, snapshot_folder(folder, step)),
        ),
        evaluation=held_out_evaluation(context, step, language, run, evaluated),
    )
    save(run.schedule.steps, weights, folder / "pack")


def _go_back_to_snapshots(section: Adapt, folder: Path) -> None:
    """Remove the checkpoints after a snapshot that is gone.

    A run that goes on from one of them would not make the snapshot again.
    """
    gone = [
        step for step in section.snapshots()[1:-1] if not snapshot_folder(folder, step).is_dir()
    ]
    if not gone:
        return
    checkpoints = newest_first(folder / "run" / "checkpoints")
    if any(step_of(name) >= gone[0] for name in checkpoints):
        finished_checkpoints(folder, gone[0] - 1)()


def _save_first(
    context: Context, step: AdaptConfig, body: BodyArtifact, source: Adaptation, out: Path
) -> None:
    """Save the pack of step 0, the language as it starts; a resumed run has it already."""
    if out.exists():
        return
    layout = context.layout
    target_tokenizer = open_tokenizer(layout.tokenizer(step.language))
    method = step.training.initialisation
    first = first_pack(
        method,
        step.seed,
        target_tokenizer=target_tokenizer,
        source_tokenizer=open_tokenizer(layout.tokenizer(step.source)),
        source_pack=dict(source.embeddings),
        pairs=PairCorpus(layout.pairs(step.language)).pairs if step.training.aligns else (),
    )
    pack = body.adaptation(step.language, first, num_base=target_tokenizer.vocabulary.num_base)
    save_adaptation(out, pack, layout.tokenizer(step.language), initialisation=method)


def adapted_model(
    step: AdaptConfig,
    body: BodyArtifact,
    vocab_size: int,
    num_base: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[BodyArtifact, trainable.Model]:
    """Return the frozen body that embeddings are trained over, and the model of step 2.

    The model has that body and a pack whose rows are to be put in.

    Args:
        step: Says how deep the body is, and what trains.
        body: The mini-model of step 1b where the system builds one, else the system's body. Its
            layers up to the system's depth are taken.
        vocab_size: Rows of the pack.
        num_base: How many of the first rows are the base's and do not train.
        dtype: Of what is frozen.
        device: Of the model.
    """
    frozen = prefix(body, step.depth)
    with torch.device("meta"):
        module = language_model(
            step.engine, frozen.config, frozen.head_depths, vocab_size, num_base
        )
    trainable.train_only(module, lambda name: trains_in_adapt(name, step.system))
    # At ZeRO 3 a rank keeps only its parts of frozen weights, which are read later; a plan, on the
    # meta device, reads none.
    is_partitioned = step.engine.zero_stage == 3 and device.type != "meta"
    trainable.materialise(module, dtype, device, defer_frozen=is_partitioned)
    trainable.load_into(module, frozen.tensors, "body.")
    if step.system.trains == "low-rank":
        add_low_rank(module.body, step.training.rank, step.seed)
    return frozen, module


def trains_in_adapt(name: str, system: System) -> bool:
    """Return whether step 2 of a system trains the model's parameter of this name."""
    if name.startswith("pack."):
        return not name.startswith(f"pack.{BASE_ROWS}")
    return system.trains == "all" or is_low_rank(name)


def penalty_of_source(context: Context, step: AdaptConfig, run: Run) -> trainable.NewTokenPenalty:
    """Return the NewTokenPenalty of an added language, the same on all ranks.

    It is made from the first samples of the source's text. While they are read, the whole body is
    in memory beside the one that trains. The costs contain neither its FLOPs, as many as those of
    some steps, nor the penalty's, some thousandths of each step.
    """
    world = context.world
    section = step.training
    body, source = load_model(context.layout.model(step.system))
    model = whole_model(world, run, body, source)
    (head,) = model.body.heads.values()
    sampler = text_sampler(context, step, step.source)
    states = []
    log_sums = []
    num_samples = max(1, PENALTY_TOKENS // section.seq_length)
    micro_size = run.execution.micro_batch_size
    with torch.no_grad():
        for first in range(0, num_samples, micro_size):
            samples = sampler.batch(first, min(num_samples, first + micro_size))
            batch = trainable.to_tensors(samples, world.device)
            (x_BMH,), table = trainable.encode(model.pack, model.body, batch)
            x_PH = head(x_BMH.flatten(0, 1)[batch["targets"].flatten() != IGNORED])
            states.append(x_PH)
            log_sums += [model.pack.log_sums(x_RH, table) for x_RH in x_PH.split(PENALTY_ROWS)]
    targets_per_sample = int(step.trained_by.share_read(section) * section.seq_length)
    # A sample is penalised at a quarter as many states as it has targets, for all of them.
    return trainable.NewTokenPenalty(
        torch.cat(states),
        torch.cat(log_sums),
        weight=section.new_token_penalty,
        width=max(1, targets_per_sample // 4),
    )
