"""Training steps of a recipe as workloads: at its sizes, on made-up batches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ds_minimodel.artifacts.mini import is_layer_from
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.steps import Finetune
from ds_minimodel.config.systems import BASELINE, SYSTEMS
from ds_minimodel.evaluation.batches import join
from ds_minimodel.models import BodyConfig
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.flops import Cost, Workload, finetune_flops, step_flops
from ds_minimodel.models.low_rank import add_low_rank, low_rank_size
from ds_minimodel.models.trainable import (
    LanguageModel,
    SequenceClassifier,
    materialise,
    to_tensors,
    train_only,
)
from ds_minimodel.ops.precision import DTYPES, resolve_precision
from ds_minimodel.pipeline.steps.adapt import trains_in_adapt
from ds_minimodel.pipeline.training import StepConfig, training_run
from ds_minimodel.tokenizers.tokenizer import SPECIAL, trained_layout
from ds_minimodel.training.config import Schedule, Training
from ds_minimodel.training.run import Run
from ds_minimodel.training.world import World

PAPER = "paper"
STEPS = (
    "pretrain",
    "build-mini",
    "adapt-mini",
    "adapt-full",
    "adapt-lora",
    "extend-lora",
    "finetune",
)
NEW_TOKENS = 1000  # of extend-lora, beside the vocabulary's, which do not train
NUM_LABELS = 3  # natural language inference
MANY_STEPS = 10**6  # of the learning rate's schedule: a benchmark never reaches its end


@dataclass(frozen=True)
class TimedStep:
    """One training step at one size. `body` names the head's depth, none for finetuning."""

    name: str
    body: BodyConfig
    vocab_size: int
    batch_size: int  # sequences a rank
    seq_length: int
    num_read: int  # positions of a sequence that the head reads
    frozen_layers: int  # layers below the new ones, in step 1b
    shortest: int  # tokens of the shortest row in finetuning; the longest has seq_length
    rank: int = 0  # of low-rank updates in step 2
    num_base: int = 0  # tokens of the vocabulary, the first, that do not train

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, the same in every batch."""
        return (
            np.linspace(self.shortest, self.seq_length, self.batch_size)
            .round()
            .astype(int)
            .tolist()
        )

    @property
    def tokens(self) -> int:
        """Tokens of a step on one rank, padding left out."""
        return sum(self.lengths)

    def cost(self) -> Cost:
        """FLOPs of a step on one rank, by the paper's formulas and as executed."""
        length = self.tokens / self.batch_size
        sizes = round(length), self.num_read / length, self.batch_size
        work = Workload(self.body, self.vocab_size, *sizes, num_base=self.num_base)
        if self.name == "finetune":
            return finetune_flops(work, NUM_LABELS, reads_start=True)
        step = self.name if self.name in ("pretrain", "build-mini") else "adapt"
        low_rank = low_rank_size(self.body, self.rank) if self.rank else 0
        return step_flops(
            step, work, (self.body.num_layers,), self.frozen_layers, low_rank=low_rank
        )


def workload(
    recipe: Recipe,
    step: str,
    tokens: int,
    seq_length: int | None = None,
    shortest: int | None = None,
) -> TimedStep:
    """A step of a recipe, about `tokens` tokens a rank in sequences of `seq_length` (default: its
    own).

    shortest: tokens of the shortest sequence in finetuning; by default all are of one length.
    """
    depth, num_layers = {
        **dict.fromkeys(STEPS, (0, recipe.model.num_layers)),
        "adapt-mini": (0, recipe.mini.depth),
        "build-mini": (recipe.mini.depth, recipe.mini.depth + recipe.mini.new_layers),
    }[step]
    section = {"pretrain": recipe.pretrain, "build-mini": recipe.build_mini}.get(step, recipe.adapt)
    length = seq_length or (128 if step == "finetune" else section.seq_length)
    body = recipe.body_config.with_layers(num_layers)
    least = shortest if shortest and step == "finetune" else length
    batch_size = max(1, 2 * tokens // (least + length))
    num_read = 1 if step == "finetune" else round(recipe.trained_by.share_read(section) * length)
    rank = recipe.adapt.rank if step.endswith("-lora") else 0
    vocab_size = recipe.tokenizer.vocab_size
    num_base, num_new = (vocab_size, NEW_TOKENS) if step == "extend-lora" else (0, vocab_size)
    return TimedStep(
        step, body, num_base + num_new, batch_size, length, num_read, depth, least, rank, num_base
    )


def small_model(layers: int, width: int, vocabulary: int, **more: object) -> dict[str, Any]:
    """Arguments of training.start for ours, of a model with heads of 64 and a mini-model of half
    its layers.

    In fp32 at ZeRO 1 where `more`, the other arguments, does not say otherwise.
    """
    half = max(1, layers // 2)
    model = (
        f"num_layers: {layers}, hidden_size: {width}, num_heads: {max(1, width // 64)}, ffn_size: "
        f"{4 * width}"
    )
    mini = f"depth: {half}, new_layers: {max(1, layers // 4)}"
    overrides = [
        f"model={{{model}, max_positions: 512}}",
        f"mini={{{mini}}}",
        f"tokenizer.vocab_size={vocabulary}",
    ]
    ours = {"contestant": "ds_minimodel", "precision": "fp32", "zero_stage": 1}
    return {"recipe": PAPER, "overrides": overrides, **ours, **more}


def trains(work: TimedStep) -> Callable[[str], bool]:
    """Function that says of a parameter's name in our module whether the step trains it."""
    if work.name == "pretrain":
        return lambda name: True
    if work.name == "finetune":
        return lambda name: not name.startswith("pack.")
    if work.name == "build-mini":
        return lambda name: (
            name.startswith("body.")
            and is_layer_from(name.removeprefix("body."), work.frozen_layers)
        )
    return lambda name: trains_in_adapt(name, SYSTEMS["lora" if work.rank else BASELINE])


def our_module(work: TimedStep, recipe: Recipe) -> SequenceClassifier | LanguageModel:
    """Model of the step, random weights, frozen as the step freezes it."""
    torch.manual_seed(recipe.seed)
    if work.rank:  # frozen weights in the run's precision, as the step reads them
        with torch.device("meta"):
            model = LanguageModel(
                work.body, work.vocab_size, (work.body.num_layers,), work.num_base
            )
        train_only(model, trains(work))
        materialise(model, DTYPES[resolve_precision(recipe.engine.precision, torch.device("cpu"))])
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, float(parameter.dim() == 1), INIT_STD)
        add_low_rank(model.body, work.rank, recipe.seed)
        return model
    module: SequenceClassifier | LanguageModel = (
        SequenceClassifier(work.body, work.vocab_size, NUM_LABELS)
        if work.name == "finetune"
        else LanguageModel(work.body, work.vocab_size, (work.body.num_layers,))
    )
    train_only(module, trains(work))
    return module


def make_batch(work: TimedStep, number: int) -> dict:
    """Batch of step `number`, as the data part would make it."""
    if work.name == "finetune":
        numbers = np.random.default_rng(number)
        rows = [numbers.integers(len(SPECIAL), work.vocab_size, length) for length in work.lengths]
        examples = join(rows, numbers.integers(NUM_LABELS, size=work.batch_size), reads_start=True)
        keys = numbers.integers(1 << 32, size=work.batch_size)
        return to_tensors(examples.batch(np.arange(work.batch_size), keys))
    draw = torch.Generator().manual_seed(number)
    shape = work.batch_size, work.seq_length
    tokens = torch.randint(len(SPECIAL), work.vocab_size, shape, generator=draw)
    if work.body.causal:  # all positions are read, and the last predicts nothing
        targets = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
        sample_keys = torch.randint(-(2**31), 2**31 - 1, shape[:1], generator=draw).to(torch.int32)
        return {
            "tokens": tokens,
            "targets": targets,
            "sample_keys": sample_keys,
            "count": tokens[:, 1:].numel(),
        }
    read = torch.rand(shape, generator=draw).argsort(1)[:, : work.num_read].sort(1).values
    targets = tokens.gather(1, read)
    tokens = tokens.scatter(
        1, read, trained_layout(work.vocab_size).require("mask", "masked language modelling")
    )  # all masked: the kind of a piece costs nothing
    sample_keys = torch.randint(-(2**31), 2**31 - 1, (work.batch_size,), generator=draw).to(
        torch.int32
    )
    return {
        "tokens": tokens,
        "loss_positions": read,
        "targets": targets,
        "sample_keys": sample_keys,
        "count": targets.numel(),
    }


def resolved_run(work: TimedStep, recipe: Recipe, world: World) -> Run:
    """Run specification of the step, as the pipeline makes it; one micro-batch a rank."""
    sections: dict[str, Training | Finetune] = {
        "pretrain": recipe.pretrain,
        "build-mini": recipe.build_mini,
        "finetune": recipe.finetune,
    }
    section = sections.get(work.name, recipe.adapt)
    cost = work.cost()
    return training_run(
        StepConfig.of(recipe),
        world,
        schedule=Schedule(MANY_STEPS, section.lr),
        batch_size=work.batch_size * world.size,
        tokens_per_step=work.tokens * world.size,
        cost=cost,
    )
