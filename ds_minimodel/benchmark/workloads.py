"""Training steps of a recipe as workloads: at its sizes, on made-up batches without padding."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ds_minimodel.common.vocabulary import NUM_SPECIAL, mask_id
from ds_minimodel.costs import Cost, Work, finetune_flops, step_flops
from ds_minimodel.engine.ranks.world import World
from ds_minimodel.engine.run import Run
from ds_minimodel.model.heads import MaskedLanguageModel, SequenceClassifier
from ds_minimodel.model.mini import is_layer_from
from ds_minimodel.model.parameters import train_only
from ds_minimodel.model.transformer import BodyConfig
from ds_minimodel.recipe.schema import Finetune, MaskedLm, Recipe
from ds_minimodel.steps.adapt import trains_in_adapt
from ds_minimodel.steps.training import training_run

NUM_LABELS = 3  # natural language inference
MANY_STEPS = 10**6  # of the learning rate's schedule: a benchmark never reaches its end


@dataclass(frozen=True)
class Workload:
    """One training step at one size. `body` names the head's depth, none for finetuning."""

    name: str
    body: BodyConfig
    vocab_size: int
    batch_size: int  # sequences a rank
    seq_length: int
    num_read: int  # positions of a sequence that the head reads
    frozen_layers: int  # layers below the new ones, in step 1b

    @property
    def tokens(self) -> int:
        """Tokens of a step on one rank."""
        return self.batch_size * self.seq_length

    def cost(self) -> Cost:
        """FLOPs of a step on one rank, by the paper's formulas and as executed."""
        work = Work(
            self.body.hidden_size,
            self.body.ffn_size,
            self.vocab_size,
            self.seq_length,
            self.num_read / self.seq_length,
            self.batch_size,
        )
        if self.name == "finetune":
            return finetune_flops(work, self.body.num_layers, NUM_LABELS, reads_start=True)
        step = "adapt" if self.name.startswith("adapt-") else self.name
        return step_flops(step, work, self.body.head_depths, self.frozen_layers)


def workload(recipe: Recipe, name: str, tokens: int, seq_length: int | None = None) -> Workload:
    """The step `name` of a recipe, about `tokens` tokens a rank in sequences of `seq_length` (default: its own)."""
    depth, num_layers = {
        "pretrain": (0, recipe.model.num_layers),
        "adapt-full": (0, recipe.model.num_layers),
        "finetune": (0, recipe.model.num_layers),
        "adapt-mini": (0, recipe.mini.depth),
        "build-mini": (recipe.mini.depth, recipe.mini.depth + recipe.mini.new_layers),
    }[name]
    section = {"pretrain": recipe.pretrain, "build-mini": recipe.build_mini}.get(name, recipe.adapt)
    length = seq_length or (128 if name == "finetune" else section.seq_length)
    model = recipe.model
    body = BodyConfig(
        num_layers,
        model.hidden_size,
        model.num_heads,
        model.ffn_size,
        model.max_positions,
        () if name == "finetune" else (num_layers,),
        model.dropout,
        model.attention_dropout,
    )
    num_read = 1 if name == "finetune" else round(section.mask_prob * length)
    return Workload(name, body, recipe.tokenizer.vocab_size, max(1, tokens // length), length, num_read, depth)


def trains(work: Workload, recipe: Recipe) -> Callable[[str], bool]:
    """Function that says of a parameter's name in our module whether the step trains it."""
    if work.name == "pretrain":
        return lambda name: True
    if work.name == "finetune":
        return lambda name: not name.startswith("pack.")
    if work.name == "build-mini":
        return lambda name: name.startswith("body.") and is_layer_from(name.removeprefix("body."), work.frozen_layers)
    return lambda name: trains_in_adapt(name, recipe.adapt)


def our_module(work: Workload, recipe: Recipe) -> SequenceClassifier | MaskedLanguageModel:
    """Model of the step, random weights, frozen as the step freezes it."""
    torch.manual_seed(recipe.seed)
    module: SequenceClassifier | MaskedLanguageModel = (
        SequenceClassifier(work.body, work.vocab_size, NUM_LABELS)
        if work.name == "finetune"
        else MaskedLanguageModel(work.body, work.vocab_size)
    )
    train_only(module, trains(work, recipe))
    return module


def make_batch(work: Workload, number: int) -> dict:
    """Batch of step `number`, as the data part would make it where no row is padded."""
    draw = torch.Generator().manual_seed(number)
    shape = work.batch_size, work.seq_length
    tokens = torch.randint(NUM_SPECIAL, work.vocab_size, shape, generator=draw)
    if work.name == "finetune":
        read = torch.zeros(work.batch_size, 1, dtype=torch.int64)
        targets = torch.randint(NUM_LABELS, (work.batch_size, 1), generator=draw)
    else:
        read = torch.rand(shape, generator=draw).argsort(1)[:, : work.num_read].sort(1).values
        targets = tokens.gather(1, read)
        tokens = tokens.scatter(1, read, mask_id(work.vocab_size))  # all masked: the kind of a piece costs nothing
    keys = torch.randint(-(2**31), 2**31 - 1, (work.batch_size,), generator=draw).to(torch.int32)
    return {"tokens": tokens, "read": read, "targets": targets, "sample_keys": keys, "count": targets.numel()}


def resolved_run(work: Workload, recipe: Recipe, world: World) -> Run:
    """Run specification of the step, as the pipeline makes it; one micro-batch a rank."""
    sections: dict[str, MaskedLm | Finetune] = {
        "pretrain": recipe.pretrain,
        "build-mini": recipe.build_mini,
        "finetune": recipe.finetune,
    }
    section = sections.get(work.name, recipe.adapt)
    cost = work.cost()
    return training_run(
        recipe,
        section,
        world,
        steps=MANY_STEPS,
        batch_size=work.batch_size * world.size,
        lr=section.lr,
        warmup_steps=0,
        tokens_per_step=work.tokens * world.size,
        phases=((MANY_STEPS, cost.formula, cost.executed),),
    )
