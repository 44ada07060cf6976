"""Shared parts of the training steps: configuration, samples of a text, the resolved Run, batches.

The loss on held-out text while a step trains on the rest, in nats per token, is here, too.
"""

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self, cast

import numpy as np
import torch

from ds_minimodel.artifacts.adaptation import load_base_rows, plug
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact
from ds_minimodel.common.config import DECIDES_NOTHING, Section, Seed
from ds_minimodel.common.names import Name
from ds_minimodel.common.random import Stream
from ds_minimodel.config.flops import step_work
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.steps import Adapt
from ds_minimodel.config.systems import System
from ds_minimodel.data.config import Data
from ds_minimodel.data.samples import HELD_OUT, BlockTable, MixedReader, SampleReader
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.batches import Examples
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import Layer
from ds_minimodel.models.flops import Cost, Workload
from ds_minimodel.models.objectives import OBJECTIVES, Objective, Sampler, TextObjective
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import Model, load_into, materialise, to_tensors
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.pipeline.context import Context
from ds_minimodel.pipeline.layout import TOKENS
from ds_minimodel.pipeline.lines import SOURCE, LineSampler, Targets, examples_of, together
from ds_minimodel.pipeline.records import inputs_hash
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.training.checkpoints.storage import drop_all
from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Engine, Schedule, Training
from ds_minimodel.training.loop import Batches, Evaluation, RunIdentity, Weights, to_device, train
from ds_minimodel.training.run import Accounting, Execution, Run
from ds_minimodel.training.world import World
from ds_minimodel.training.zero.config import check_deepspeed, needed_stage


class BatchSource(Protocol):
    """Source of batches, by the global numbers of their samples."""

    def batch(self, first: int, last: int) -> dict[str, Any]:
        """Return the samples from number `first` to before number `last`."""
        ...


class StepConfig(Section):
    """Settings that decide what a job of a training step makes from what it reads.

    The job's record holds them.
    """

    seed: Seed
    engine: Engine
    optimizer: AdamWConfig
    checkpoint: Annotated[CheckpointPolicy, DECIDES_NOTHING]

    @classmethod
    def of(cls, recipe: Recipe, **fields: Any) -> Self:
        """Return the part of a recipe that a step reads.

        Args:
            recipe: What the step is of.
            **fields: Settings that this kind of step alone has.
        """
        shared = {name: getattr(recipe, name) for name in StepConfig.model_fields}
        return cls(**shared | fields)


class TextStepConfig(StepConfig):
    """Settings of a step that trains on text.

    Attributes:
        section: Name that a record has for `training`.
        source: Source language. Its name decides nothing: the step reads its text and vocabulary.
        objective: Name of the objective.
        data: The recipe's section.
        training: The step's section of the recipe.
    """

    section: ClassVar[str] = "training"
    source: Annotated[Name, DECIDES_NOTHING]
    objective: str
    data: Data
    training: Training

    @classmethod
    def of(cls, recipe: Recipe, **fields: Any) -> Self:
        """Return the part of a recipe that a step reads; `fields` are as of a StepConfig."""
        shared = {
            "source": recipe.languages.source,
            "objective": recipe.trained_by.name,
            "data": recipe.data,
        }
        return super().of(recipe, **shared, **fields)

    def recorded(self) -> dict[str, Any]:
        """Return what a record holds, as of a Section."""
        facts = super().recorded()
        training = facts.pop("training")
        data = {**facts["data"], "blocks": self.blocks}
        return {self.section: training, **facts, "data": data}

    @property
    def trained_by(self) -> Objective:
        """The declaration of the objective."""
        return OBJECTIVES[self.objective]

    @property
    def blocks(self) -> str:
        """What a training sample is made of."""
        return self.data.blocks or self.trained_by.blocks

    def work(self, config: BodyConfig, vocab_size: int, num_base: int = 0) -> Workload:
        """Return what one optimizer step trains on.

        Args:
            config: Of the body.
            vocab_size: Rows of the embeddings.
            num_base: As of a Workload.
        """
        return step_work(self.trained_by, config, self.training, vocab_size, num_base=num_base)


def language_model(
    engine: Engine,
    config: BodyConfig,
    head_depths: Sequence[int],
    vocab_size: int,
    num_base: int = 0,
) -> Model:
    """Return a fresh model.

    Args:
        engine: Says whether layers are recomputed.
        config: Of the body.
        head_depths: Counts of layers after which there are heads.
        vocab_size: Rows of the embeddings.
        num_base: How many of the first rows are the base's.
    """
    model = OBJECTIVES[config.trained_with].model(config, vocab_size, head_depths, num_base)
    for layer in model.body.layers:
        assert isinstance(layer, Layer)
        layer.recomputes = engine.recompute_layers
    return model


def whole_model(
    world: World, run: Run, body: BodyArtifact, pack: Adaptation, base: Adaptation | None = None
) -> Model:
    """Return a body with a language, split over the ranks of a replica, that does not train.

    Args:
        world: The ranks.
        run: Says the precision.
        body: The body.
        pack: The language.
        base: The language whose vocabulary `pack` extends, where it extends one.
    """
    with torch.device("meta"):
        model = OBJECTIVES[body.objective].model(
            body.config, pack.num_base + pack.rows, body.head_depths, pack.num_base
        )
    model.requires_grad_(requires_grad=False)
    materialise(model, DTYPES[run.execution.precision], world.device)
    load_into(model, body.tensors, "body.")
    plug(model, pack, body)
    if base is not None:
        load_base_rows(model, base, pack.num_base)
    split_model(model, world.tensor)
    return model.eval()


def text_steps(recipe: Recipe, systems: Sequence[System]) -> dict[str, Training]:
    """Return {step: its section of the recipe} of the steps on text of some of its systems."""
    steps: dict[str, Training] = {}
    if not recipe.base:
        steps["pretrain"] = recipe.pretrain
    if any(system.builds_mini for system in systems):
        steps["build-mini"] = recipe.build_mini
    steps["adapt"] = recipe.adapt
    return steps


def seeds_of_task(recipe: Recipe, name: str) -> range:
    """Return the seeds of the models that a task is scored with.

    They are those of its finetuning, or the body's where it is not finetuned.
    """
    count = recipe.finetune.seeds if name in recipe.finetune.finetuned_tasks else 1
    return range(recipe.seed, recipe.seed + count)


def snapshot_folder(folder: Path, step: int) -> Path:
    """Return the folder of the pack that step 2 in `folder` had after `step` updates."""
    return folder / "snapshots" / f"step-{step:08}"


def finished_checkpoints(folder: Path, stable_steps: int = 0) -> Callable[[], None]:
    """Return a function that removes what a finished training run needs no more (Job.clean_up).

    Args:
        folder: Of the run.
        stable_steps: Of its schedule. A longer run goes on from there.
    """
    return partial(drop_all, folder / "run" / "checkpoints", stable_steps)


def training_run(
    step: StepConfig,
    world: World,
    *,
    schedule: Schedule,
    batch_size: int,
    tokens_per_step: int,
    cost: Cost,
    micro_batch_size: int | None = None,
) -> Run:
    """Return the Run of a step, by its engine and optimizer.

    Args:
        step: To be trained.
        world: The ranks.
        schedule: Of the learning rate.
        batch_size: Samples of an optimizer step.
        tokens_per_step: Tokens of an optimizer step.
        cost: Of one optimizer step.
        micro_batch_size: Where it is not the recipe's.

    Raises:
        UserError: The recipe's DeepSpeed JSON does not fit.
    """
    engine = step.engine
    # CPUs are deterministic in any case.
    if engine.deterministic and world.device.type == "cuda":
        # Torch asks for this variable where algorithms are to be deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
    precision = world.replicated(lambda: resolve_precision(engine.precision, world.device))
    run = Run(
        schedule=schedule,
        execution=Execution(
            batch_size=batch_size,
            micro_batch_size=micro_batch_size or engine.micro_batch_size,
            zero_stage=engine.zero_stage,
            precision=precision,
        ),
        accounting=Accounting(tokens_per_step, cost.formula, cost.executed),
        optimizer=step.optimizer,
        checkpoints=step.checkpoint,
        deepspeed=engine.deepspeed.settings,
        deepspeed_file=engine.deepspeed.path,
    )
    world.replicated(lambda: check_deepspeed(run, world.data.size))
    stage = needed_stage(
        run.execution,
        replicas=world.data.size,
        tensor_parallel=world.tensor.size,
        clip=step.optimizer.clip,
        settings=run.deepspeed,
        device_type=world.device.type,
    )
    return replace(run, execution=replace(run.execution, zero_stage=stage))


def samples_of(context: Context, step: TextStepConfig, language: str) -> BatchSource:
    """Return the samples of a step on one language: of its text, or of lines of pairs."""
    if step.trained_by.predicts_tokens:
        return text_sampler(context, step, language)
    return line_sampler(context, step, language)


def line_sampler(context: Context, step: TextStepConfig, language: str) -> LineSampler:
    """Return the lines of a target's pairs; of the source the source sides of all targets' pairs.

    The main rank verifies their stores first.
    """
    layout = context.layout
    section = step.training

    def examples(folder: Path, text: str) -> Examples:
        context.world.broadcast_from_rank0(
            lambda: _store(context, folder, text, verify=True).num_tokens
        )
        return examples_of(_store(context, folder, text), section.seq_length)

    if language == step.source:
        targets = list(step.data.pairs)
        sides = [examples(layout.tokens(target) / SOURCE, language) for target in targets]
        shown = np.concatenate([Targets(layout.targets(target)).whole() for target in targets])
        return LineSampler(together(*sides), shown, section.batch_size, step.seed)
    share = section.replay if isinstance(section, Adapt) else 0.0
    return LineSampler(
        examples(layout.tokens(language), language),
        Targets(layout.targets(language)),
        section.batch_size,
        step.seed,
        others=examples(layout.tokens(language) / SOURCE, step.source) if share else None,
        share=share,
    )


def text_sampler(context: Context, step: TextStepConfig, language: str) -> Sampler:
    """Return the samples of a step that trains on one language's text.

    In step 2 a target language's samples are mixed with its dialogues and with what is replayed:
    the source's text or self-generated replay. The main rank verifies the token stores first.
    """
    layout = context.layout
    section = step.training

    def sampler(folder: Path, vocabulary_of: str, blocks: str) -> Sampler:
        context.world.broadcast_from_rank0(
            lambda: _store(context, folder, vocabulary_of, verify=True).num_tokens
        )
        store = _store(context, folder, vocabulary_of)
        tables = layout.root / TOKENS
        return _sampler(context, step, store, step.seed, blocks, tables)

    samples = sampler(layout.tokens(language), language, step.blocks)
    if not isinstance(section, Adapt) or language == step.source:
        return samples
    if language in step.data.chats:
        chats = sampler(layout.chats(language), language, "complete_doc")
        share = section.chat_share
        samples = Sampler(
            MixedReader(samples.reader, chats.reader, share, Stream.CHATS),
            samples.objective,
            section,
        )
    if not section.replay:
        return samples
    if section.replays_own:
        # Its texts were cut off, so no block may go on from one to the next.
        others = sampler(layout.own_replay(), step.source, "complete_doc")
    else:
        others = sampler(layout.tokens(step.source), step.source, step.blocks)
    return Sampler(
        MixedReader(samples.reader, others.reader, section.replay), samples.objective, section
    )


def held_out_sampler(
    context: Context, step: TextStepConfig, language: str, folder: Path, blocks: str
) -> Sampler | None:
    """Return samples of what is held out of a token store; None where that is nothing.

    They are the same for every seed.

    Args:
        context: Of the step.
        step: Its settings.
        language: Whose vocabulary the store is written in.
        folder: Of the token store.
        blocks: As in the recipe.
    """
    if not step.data.held_out:
        return None
    store = _store(context, folder / HELD_OUT, language)
    if not store.num_documents:
        return None
    return _sampler(context, step, store, seed=0, blocks=blocks)


def _store(context: Context, folder: Path, language: str, *, verify: bool = False) -> TokenStore:
    tokenizer = open_tokenizer(context.layout.tokenizer(language))
    return TokenStore(folder, tokenizer.sha256, verify=verify)


def _sampler(
    context: Context,
    step: TextStepConfig,
    store: TokenStore,
    seed: int,
    blocks: str,
    tables: Path | None = None,
) -> Sampler:
    """Return samples of a store.

    `blocks` is as in the recipe; `tables` is the folder of the table of blocks, where it does not
    lie beside the store.
    """
    table = partial(BlockTable, store, blocks, step.training.seq_length, tables)
    # The main rank builds it; the others, on the same disk, open it.
    context.world.broadcast_from_rank0(lambda: len(table()))
    objective = step.trained_by
    assert isinstance(objective, TextObjective)
    return Sampler(SampleReader(store, table(), seed), objective, step.training)


def text_run(step: TextStepConfig, world: World, cost: Cost) -> Run:
    """Return the Run of a step that trains on text; `cost` is that of one optimizer step."""
    section = step.training
    return training_run(
        step,
        world,
        schedule=section.lr_schedule,
        batch_size=section.batch_size,
        tokens_per_step=section.batch_size * section.seq_length,
        cost=cost,
    )


def micro_batches(sampler: BatchSource, run: Run, world: World) -> Batches:
    """Return a function that gives this rank's micro-batches of a step, as torch tensors.

    Step s takes the samples with the global numbers [s * batch_size, (s + 1) * batch_size), for any
    count of ranks and any size of a micro-batch.
    """
    data = world.data
    batch_size = run.execution.batch_size
    micro_size, accumulation = world.replicated(lambda: run.execution.split(data.size))

    def batches(step: int) -> list[dict[str, Any]]:
        first = step * batch_size + data.rank * micro_size
        starts = (first + index * data.size * micro_size for index in range(accumulation))
        return [to_tensors(sampler.batch(start, start + micro_size)) for start in starts]

    return batches


def train_job(
    module: torch.nn.Module,
    sampler: BatchSource,
    run: Run,
    world: World,
    folder: Path,
    label: str,
    grows: str = "",
    **options: Any,
) -> Weights:
    """Train the module of a job, and return the trained weights.

    Args:
        module: To be trained.
        sampler: Of the samples.
        run: Schedule, batches and so on.
        world: The ranks.
        folder: Of the job, whose record decides which checkpoints are of this run.
        label: Name of the run in messages.
        grows: As of the Job.
        **options: Of `train`.
    """
    batches = micro_batches(sampler, run, world)
    identity = RunIdentity(folder / "run", label, job=inputs_hash(folder, grows))
    return train(module, batches, run, world, identity, **options)


def train_on_source(
    context: Context,
    step: TextStepConfig,
    module: Model,
    cost: Cost,
    folder: Path,
    label: str,
) -> tuple[Weights, Run]:
    """Train a model on the source language's text.

    Args:
        context: Of the step.
        step: Its settings.
        module: To be trained.
        cost: Of one optimizer step.
        folder: Of the job.
        label: Name of the run in messages.

    Returns:
        (the weights that trained, the Run).
    """
    world = context.world
    sampler = samples_of(context, step, step.source)
    split_model(module, world.tensor)
    run = text_run(step, world, cost)
    evaluation = held_out_evaluation(context, step, step.source, run)
    return train_job(module, sampler, run, world, folder, label, evaluation=evaluation), run


# --- Held-out text ---

NUM_EVALUATIONS = 20  # of a run, about
# Share of the training's cost that evaluations may take. A forward pass counts as a training step
# on the same samples.
MAX_COST = 0.02
# The same of runs so short that MIN_SAMPLES cost more than MAX_COST.
SHORT_COST = 0.1
MIN_SAMPLES = 16
MAX_SAMPLES = 4096
# A run that may grow is evaluated on as many samples as these batches have, however long it is.
GROWING_BATCHES = 4


@dataclass(frozen=True)
class WholeBody:
    """The body that a pack is plugged into, where step 2 trains over another or a part of it.

    Attributes:
        num_layers: Layers of the body.
        trained_layers: Layers that step 2 runs.
        snapshots: Steps after which the body is evaluated.
        plugged: (module that trains, function that gives the trained weights) → a model with that
            body.
    """

    num_layers: int
    trained_layers: int
    snapshots: Collection[int]
    plugged: Callable[[torch.nn.Module, Callable[[], Weights]], torch.nn.Module]


def held_out_evaluation(
    context: Context, step: TextStepConfig, language: str, run: Run, body: WholeBody | None = None
) -> Evaluation:
    """Return the evaluation of a step on the held-out text of the language that it trains on.

    Without held-out text there is none. Its samples, their order and what is hidden in them are the
    same at every step, for any seed and count of ranks.

    Args:
        context: Of the step.
        step: Its settings.
        language: That it trains on.
        run: Its Run.
        body: Evaluated at its snapshots, too.
    """
    if not isinstance(step.trained_by, TextObjective):
        return Evaluation()
    layout = context.layout
    world = context.world
    sampler = held_out_sampler(context, step, language, layout.tokens(language), step.blocks)
    if sampler is None:
        return Evaluation()
    steps, max_count = evaluated_steps(step.training, run, body)
    count = min(max_count, len(sampler.reader.blocks))
    micro_size = world.replicated(lambda: run.execution.split(world.data.size)).micro
    chats: Sampler | None = None
    if language in step.data.chats:
        chats = held_out_sampler(context, step, language, layout.chats(language), "complete_doc")

    def losses(module: torch.nn.Module, name: str, sampler: Sampler) -> dict[str, float]:
        size = min(count, len(sampler.reader.blocks))
        return losses_of(module, sampler, size, micro_size, world, name)

    def scores(
        step: int, module: torch.nn.Module, weights: Callable[[], Weights]
    ) -> dict[str, float]:
        values = losses(module, "held_out/", sampler)
        if chats:
            values |= losses(module, "held_out/chats_", chats)
        if body and step in body.snapshots:
            values |= losses(body.plugged(module, weights), "held_out/body_", sampler)
        return values

    return Evaluation(steps, scores)


def evaluated_steps(
    section: Training, run: Run, body: WholeBody | None = None
) -> tuple[Collection[int], int]:
    """Return the steps after which a run is evaluated, and the most samples.

    There are so many samples that all evaluations together cost MAX_COST of the training at most,
    but MIN_SAMPLES at least: a short run has fewer evaluations. The length of a run that may grow
    does not decide the count.
    """
    trained_samples = section.steps * section.batch_size
    may_grow = run.schedule.stable_steps > 0
    min_samples = MIN_SAMPLES
    if may_grow:
        min_samples = max(MIN_SAMPLES, GROWING_BATCHES * section.batch_size)
    affordable_evaluations = int(SHORT_COST * trained_samples / min_samples)
    num_evaluations = min(NUM_EVALUATIONS, max(1, affordable_evaluations))
    every = max(1, -(-section.steps // num_evaluations))
    steps = {*range(0, section.steps, every), section.steps}
    passes: float = len(steps)
    if body:
        steps.update(body.snapshots)
        passes = len(steps) + len(body.snapshots) * (body.num_layers / body.trained_layers)
    num_samples = min_samples
    if not may_grow:
        num_samples = max(min_samples, int(MAX_COST * trained_samples / passes))
    return steps, min(num_samples, MAX_SAMPLES)


def losses_of(
    module: torch.nn.Module,
    sampler: Sampler,
    count: int,
    micro_size: int,
    world: World,
    name: str,
) -> dict[str, float]:
    """Return the loss of a model on the first samples of a sampler, in nats per token.

    Args:
        module: The model.
        sampler: Of the samples.
        count: Of samples, over all ranks.
        micro_size: Samples of one forward pass.
        world: The ranks.
        name: Beginning of the keys, with its separator.

    Returns:
        {NAMEnats_per_token: of the deepest head}; where there are several heads, also
        {NAMEnats_per_token/HEAD: of each}. What is not finite is left out.
    """
    data = world.data
    share = data.share(count)
    parts = []
    for turn in range(-(-count // (data.size * micro_size))):
        first = share.start + turn * micro_size
        # All ranks run the model equally often: one without samples of its own runs another's.
        is_filler = first >= share.stop
        if is_filler:
            batch = sampler.batch(0, 1)
        else:
            batch = sampler.batch(first, min(first + micro_size, share.stop))
        sums = module(to_device(to_tensors(batch), world.device)).double()
        terms = sums.new_tensor([batch["count"]])
        of_batch = torch.cat([terms, sums])
        parts.append(torch.zeros_like(of_batch) if is_filler else of_batch)
    totals = torch.stack(parts).sum(0)
    if data.size > 1:
        torch.distributed.all_reduce(totals, group=data.handle)
    terms, *sums_of_heads = totals.tolist()
    nats_of_heads = [nats / max(1, terms) for nats in sums_of_heads]
    losses: dict[str, float] = {}
    if len(nats_of_heads) > 1:
        heads = cast(list[str], module.loss_names)
        for head, nats in zip(heads, nats_of_heads, strict=True):
            losses[f"{name}nats_per_token/{head}"] = nats
    losses[f"{name}nats_per_token"] = nats_of_heads[-1]
    return {key: nats for key, nats in losses.items() if math.isfinite(nats)}
