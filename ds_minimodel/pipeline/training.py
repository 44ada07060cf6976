"""Shared parts of the training steps: their configuration, samples of a text, the resolved Run,
batches.

Also the loss on held-out text while a step trains on the rest, in nats per token.
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

from ds_minimodel.artifacts.adaptation import keep_rows, plug
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
    """Batches by the global numbers of their samples."""

    def batch(self, first: int, last: int) -> dict[str, Any]: ...


class StepConfig(Section):
    """All that decides what a job of a step that trains makes, beside what it reads: the job's
    record holds it.
    """

    seed: Seed
    engine: Engine
    optimizer: AdamWConfig
    checkpoint: Annotated[CheckpointPolicy, DECIDES_NOTHING]

    @classmethod
    def of(cls, recipe: Recipe, **fields: Any) -> Self:
        """Return the part of a recipe that a step reads. fields: those of the step alone."""
        shared = {name: getattr(recipe, name) for name in StepConfig.model_fields}
        return cls(**shared | fields)


class TextStepConfig(StepConfig):
    """A step that trains on text. training: its section of the recipe, of which a record has the
    name.
    """

    section: ClassVar[str] = "training"
    source: Annotated[
        Name, DECIDES_NOTHING
    ]  # a language's text and vocabulary are what the step reads
    objective: str
    data: Data
    training: Training

    @classmethod
    def of(cls, recipe: Recipe, **fields: Any) -> Self:
        """As of a StepConfig."""
        shared = {
            "source": recipe.languages.source,
            "objective": recipe.trained_by.name,
            "data": recipe.data,
        }
        return super().of(recipe, **shared, **fields)

    def recorded(self) -> dict[str, Any]:
        """As of a Section."""
        facts = super().recorded()
        return {
            self.section: facts.pop("training"),
            **facts,
            "data": {**facts["data"], "blocks": self.blocks},
        }

    @property
    def trained_by(self) -> Objective:
        """The declaration of the objective."""
        return OBJECTIVES[self.objective]

    @property
    def blocks(self) -> str:
        """What a training sample is made of."""
        return self.data.blocks or self.trained_by.blocks

    def work(self, config: BodyConfig, vocab_size: int, num_base: int = 0) -> Workload:
        """What one optimizer step trains on. num_base: as of a Workload."""
        return step_work(self.trained_by, config, self.training, vocab_size, num_base=num_base)


def language_model(
    engine: Engine,
    config: BodyConfig,
    head_depths: Sequence[int],
    vocab_size: int,
    num_base: int = 0,
) -> Model:
    """Return a fresh model; num_base: first ids of a target whose rows are the base's."""
    model = OBJECTIVES[config.trained_with].model(config, vocab_size, head_depths, num_base)
    for layer in model.body.layers:
        assert isinstance(layer, Layer)
        layer.recomputes = engine.recompute_layers
    return model


def whole_model(
    world: World, run: Run, body: BodyArtifact, pack: Adaptation, base: Adaptation | None = None
) -> Model:
    """A body with a language, split over the ranks of a replica, that does not train.

    base: the language whose rows one has that extends its vocabulary.
    """
    with torch.device("meta"):
        model = OBJECTIVES[body.objective].model(
            body.config, pack.num_base + pack.rows, body.head_depths, pack.num_base
        )
    model.requires_grad_(False)
    materialise(model, DTYPES[run.execution.precision], world.device)
    load_into(model, body.tensors, "body.")
    plug(model, pack, body)
    if base is not None:
        keep_rows(model, base, pack.num_base)
    split_model(model, world.tensor)
    return model.eval()


def text_steps(recipe: Recipe, systems: Sequence[System]) -> dict[str, Training]:
    """{step: its section of the recipe} of what some of its systems train on text."""
    steps: dict[str, Training] = {} if recipe.base else {"pretrain": recipe.pretrain}
    builds = any(system.builds_mini for system in systems)
    return steps | ({"build-mini": recipe.build_mini} if builds else {}) | {"adapt": recipe.adapt}


def seeds_of_task(recipe: Recipe, name: str) -> range:
    """Seeds of the models that a task is scored with: of its finetuning, or the body's where it is
    not finetuned.
    """
    count = recipe.finetune.seeds if name in recipe.finetune.finetuned_tasks else 1
    return range(recipe.seed, recipe.seed + count)


def snapshot_folder(folder: Path, step: int) -> Path:
    """Of the pack that step 2 in `folder` had after so many updates."""
    return folder / "snapshots" / f"step-{step:08}"


def finished_checkpoints(folder: Path, stable_steps: int = 0) -> Callable[[], None]:
    """Return a function that removes what a finished training run needs no more (Job.clean_up).

    Args:
        folder: of the run.
        stable_steps: of its schedule, from which a longer run goes on.
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
        step: to be trained.
        world: the ranks.
        schedule: of the learning rate.
        batch_size: samples of an optimizer step.
        tokens_per_step: of an optimizer step.
        cost: of one optimizer step.
        micro_batch_size: where it is not the recipe's.

    Raises:
        UserError: the recipe's DeepSpeed JSON does not fit.
    """
    engine = step.engine
    if engine.deterministic and world.device.type == "cuda":  # CPUs are in any case
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which torch then asks for
        torch.use_deterministic_algorithms(True, warn_only=True)
    precision = world.replicated(lambda: resolve_precision(engine.precision, world.device))
    run = Run(
        schedule,
        Execution(
            batch_size, micro_batch_size or engine.micro_batch_size, engine.zero_stage, precision
        ),
        Accounting(tokens_per_step, cost.formula, cost.executed),
        step.optimizer,
        step.checkpoint,
        engine.deepspeed.settings,
        engine.deepspeed.path,
    )
    world.replicated(lambda: check_deepspeed(run, world.data.size))
    stage = needed_stage(
        run.execution,
        world.data.size,
        world.tensor.size,
        step.optimizer.clip,
        run.deepspeed,
        world.device.type,
    )
    return replace(run, execution=replace(run.execution, zero_stage=stage))


def samples_of(context: Context, step: TextStepConfig, language: str) -> BatchSource:
    """Return samples of a step that trains on one language: of its text or of lines of pairs."""
    if step.trained_by.predicts_tokens:
        return text_sampler(context, step, language)
    return line_sampler(context, step, language)


def line_sampler(context: Context, step: TextStepConfig, language: str) -> LineSampler:
    """Lines of a target's pairs; in the source those of all targets, by their source sides.

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
    """Samples of a step that trains on one language's text; the main rank verifies the token stores
    first.

    In step 2 a target language's samples are mixed with its dialogues and with what is replayed:
    the source's text or self-generated replay.
    """
    layout = context.layout
    section = step.training

    def sampler(folder: Path, language: str, blocks: str = step.blocks) -> Sampler:
        context.world.broadcast_from_rank0(
            lambda: _store(context, folder, language, verify=True).num_tokens
        )
        store = _store(context, folder, language)
        tables = layout.root / TOKENS
        return _sampler(context, step, store, step.seed, blocks, tables)

    samples = sampler(layout.tokens(language), language)
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
    if section.replays_own:  # its texts were cut off, so that no block may go on with the next
        others = sampler(layout.own_replay(), step.source, "complete_doc")
    else:
        others = sampler(layout.tokens(step.source), step.source)
    return Sampler(
        MixedReader(samples.reader, others.reader, section.replay), samples.objective, section
    )


def held_out_sampler(
    context: Context, step: TextStepConfig, language: str, folder: Path, blocks: str
) -> Sampler | None:
    """Return samples of what is held out of a token store; None where that is nothing.

    They are the same for every seed; blocks: as in the recipe.
    """
    if not step.data.held_out:
        return None
    store = _store(context, folder / HELD_OUT, language)
    return _sampler(context, step, store, 0, blocks) if store.num_documents else None


def _store(context: Context, folder: Path, language: str, verify: bool = False) -> TokenStore:
    return TokenStore(
        folder, open_tokenizer(context.layout.tokenizer(language)).sha256, verify=verify
    )


def _sampler(
    context: Context,
    step: TextStepConfig,
    store: TokenStore,
    seed: int,
    blocks: str,
    tables: Path | None = None,
) -> Sampler:
    """blocks: as in the recipe. tables: folder of the table of blocks, where it is not beside the
    store.
    """
    table = partial(BlockTable, store, blocks, step.training.seq_length, tables)
    # The main rank builds it; the others, on the same disk, open it.
    context.world.broadcast_from_rank0(lambda: len(table()))
    objective = step.trained_by
    assert isinstance(objective, TextObjective)
    return Sampler(SampleReader(store, table(), seed), objective, step.training)


def text_run(step: TextStepConfig, world: World, cost: Cost) -> Run:
    """The Run of a step that trains on text. cost: of one optimizer step."""
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
    """A function of the step: this rank's micro-batches of it, as torch tensors.

    `sampler.batch(first, last)` gives the samples with these global numbers; step s takes the
    numbers [s * batch_size, (s + 1) * batch_size), for any number of ranks and any size of a
    micro-batch.
    """
    data = world.data
    batch_size = run.execution.batch_size
    micro, accumulation = world.replicated(lambda: run.execution.split(data.size))

    def batches(step: int) -> list[dict[str, Any]]:
        first = step * batch_size + data.rank * micro
        starts = (first + index * data.size * micro for index in range(accumulation))
        return [to_tensors(sampler.batch(start, start + micro)) for start in starts]

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
    """`train` the module of the job that lies in `folder`, by its record. grows: as of the Job.
    options: of `train`.
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
    """(weights of what trains, the Run) of a model that trains on the source language's text in a
    job's `folder`.
    """
    world = context.world
    sampler = samples_of(context, step, step.source)
    split_model(module, world.tensor)
    run = text_run(step, world, cost)
    evaluation = held_out_evaluation(context, step, step.source, run)
    return train_job(module, sampler, run, world, folder, label, evaluation=evaluation), run


# --- Held-out text ---

EVALUATIONS = 20  # of a run, about
# Share of the training's cost, a forward pass counted as a training step on the same samples
MAX_COST = 0.02
SHORT_COST = 0.1  # the same of runs so short that MIN_SAMPLES cost more than MAX_COST
MIN_SAMPLES = 16
MAX_SAMPLES = 4096
GROWING_BATCHES = 4  # of a run that may grow: as many samples as these have, however long it is


@dataclass(frozen=True)
class WholeBody:
    """The body that a pack is plugged into, where step 2 trains over something else or a part of
    it.

    num_layers: of the body. trained_layers: that step 2 runs. snapshots: steps after which the body
    is evaluated. plugged: (module that trains, function that gives the trained weights) → a model
    with that body.
    """

    num_layers: int
    trained_layers: int
    snapshots: Collection[int]
    plugged: Callable[[torch.nn.Module, Callable[[], Weights]], torch.nn.Module]


def held_out_evaluation(
    context: Context, step: TextStepConfig, language: str, run: Run, body: WholeBody | None = None
) -> Evaluation:
    """The Evaluation of a step that trains on a language's text; without held-out text there is
    none.

    Its samples, their order and what is hidden in them are the same at every step, for any seed and
    number of ranks. They are so many that all evaluations together cost MAX_COST of the training
    at most, but MIN_SAMPLES at least where the text has them: of a short run there are fewer
    evaluations. Steps decide no number of a run that may grow.
    """
    objective = step.trained_by
    if not isinstance(objective, TextObjective):
        return Evaluation()
    section = step.training
    world = context.world
    layout = context.layout
    sampler = held_out_sampler(context, step, language, layout.tokens(language), step.blocks)
    if sampler is None:
        return Evaluation()
    growing = (
        max(MIN_SAMPLES, GROWING_BATCHES * section.batch_size) if run.schedule.stable_steps else 0
    )
    affordable = int(SHORT_COST * section.steps * section.batch_size / (growing or MIN_SAMPLES))
    every = max(1, -(-section.steps // min(EVALUATIONS, max(1, affordable))))
    snapshots = body.snapshots if body else ()
    steps = {*range(0, section.steps, every), section.steps, *snapshots}
    whole_costs = body.num_layers / body.trained_layers if body else 0
    passes = len(steps) + len(snapshots) * whole_costs
    affordable = growing or int(MAX_COST * section.steps * section.batch_size / passes)
    count = min(max(MIN_SAMPLES, min(affordable, MAX_SAMPLES)), len(sampler.reader.blocks))
    data = world.data
    micro = world.replicated(lambda: run.execution.split(data.size)).micro
    has_chats = language in step.data.chats
    chats = has_chats and held_out_sampler(
        context, step, language, layout.chats(language), "complete_doc"
    )

    def losses(
        module: torch.nn.Module, name: str, sampler: Sampler, count: int = count
    ) -> dict[str, float]:
        """Of the deepest head, under `name`; where there are several, of each before it."""
        share = data.share(count)
        parts = []
        for turn in range(-(-count // (data.size * micro))):
            first = share.start + turn * micro
            is_filler = first >= share.stop  # all ranks run the model equally often
            batch = (
                sampler.batch(0, 1)
                if is_filler
                else sampler.batch(first, min(first + micro, share.stop))
            )
            sums = module(to_device(to_tensors(batch), world.device)).double()
            terms = sums.new_tensor([batch["count"]])
            parts.append(torch.cat([terms, sums]) * (not is_filler))
        totals = torch.stack(parts).sum(0)
        if data.size > 1:
            torch.distributed.all_reduce(totals, group=data.handle)
        terms, *sums_of_heads = totals.tolist()
        values = {}
        heads = (
            [f"/{head}" for head in cast(list[str], module.loss_names)]
            if len(sums_of_heads) > 1
            else []
        )
        for head, nats in zip([*heads, ""], [*sums_of_heads, *sums_of_heads[-1:]], strict=False):
            values[f"{name}nats_per_token{head}"] = nats / max(1, terms)
        return {key: value for key, value in values.items() if math.isfinite(value)}

    def scores(
        step: int, module: torch.nn.Module, weights: Callable[[], Weights]
    ) -> dict[str, float]:
        values = losses(module, "held_out/", sampler)
        if chats:
            values |= losses(module, "held_out/chats_", chats, min(count, len(chats.reader.blocks)))
        if body and step in body.snapshots:
            values |= losses(body.plugged(module, weights), "held_out/body_", sampler)
        return values

    return Evaluation(steps, scores)
