"""Loss on held-out text while a step trains on the rest: in nats a token, and in bits a byte of the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import cast

import torch

from ds_minimodel.data.samples import bytes_of_ids
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.recipe.schema import Training
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import held_out_sampler
from ds_minimodel.training.loop import Evaluation, Weights, to_device
from ds_minimodel.training.run import Run

EVALUATIONS = 20  # of a run, where the recipe does not say how often
MOST_COST = 0.02  # of the training's, where a forward pass costs no more than a training step with the same samples
FEWEST_SAMPLES, MOST_SAMPLES = 16, 4096


@dataclass(frozen=True)
class WholeBody:
    """The body that a pack is plugged into, where step 2 trains over something else or a part of it.

    num_layers: of the body. trained_layers: that step 2 runs. snapshots: steps after which the body is evaluated.
    plugged: (module that trains, function that gives the trained weights) → a model with that body.
    """

    num_layers: int
    trained_layers: Callable[[int], int]
    snapshots: Collection[int]
    plugged: Callable[[torch.nn.Module, Callable[[], Weights]], torch.nn.Module]


def evaluation(
    context: Context, section: Training, language: str, run: Run, body: WholeBody | None = None
) -> Evaluation:
    """The Evaluation of a step that trains on a language's text; without held-out text there is none.

    Its samples, their order and what is hidden in them are the same at every step, for any seed and number of ranks.
    They are so many that all evaluations together cost MOST_COST of the training at most, but FEWEST_SAMPLES at least
    where the text has them.
    """
    recipe, world = context.recipe, context.world
    sampler = held_out_sampler(context, section, language)
    if sampler is None:
        return Evaluation()
    every = section.held_out_every or max(1, section.steps // EVALUATIONS)
    snapshots = body.snapshots if body else ()
    steps = {*range(0, section.steps, every), section.steps, *snapshots}
    passes = len(steps) + (len(snapshots) * body.num_layers / body.trained_layers(0) if body else 0)
    affordable = int(MOST_COST * section.steps * section.batch_size / passes)
    count = min(max(FEWEST_SAMPLES, min(affordable, MOST_SAMPLES)), len(sampler.reader.blocks))
    sizes = bytes_of_ids(open_tokenizer(context.layout.tokenizer(language)))
    objective, data = recipe.trained_by, world.data
    micro = world.replicated(lambda: run.execution.split(data.size)).micro

    def losses(module: torch.nn.Module, name: str, **depth: int) -> dict[str, float]:
        """Of the deepest head, under `name`; where there are several, of each before it."""
        share, parts = data.share(count), []
        for turn in range(-(-count // (data.size * micro))):
            first = share.start + turn * micro
            is_filler = first >= share.stop  # all ranks run the model equally often
            batch = sampler.rows(0, 1) if is_filler else sampler.rows(first, min(first + micro, share.stop))
            sums = module({**to_device(to_tensors(batch), world.device), **depth}).double()
            facts = sums.new_tensor([batch["count"], objective.text_bytes(batch, sizes)])
            parts.append(torch.cat([facts, sums]) * (not is_filler))
        totals = torch.stack(parts).sum(0)
        if data.size > 1:
            torch.distributed.all_reduce(totals, group=data.handle)
        terms, num_bytes, *sums_of_heads = totals.tolist()
        values = {}
        heads = [f"/{head}" for head in cast(list[str], module.loss_names)] if len(sums_of_heads) > 1 else []
        for head, nats in zip([*heads, ""], [*sums_of_heads, *sums_of_heads[-1:]], strict=False):
            values[f"{name}nats_per_token{head}"] = nats / max(1, terms)
            values[f"{name}bits_per_byte{head}"] = nats / math.log(2) / num_bytes if num_bytes else math.nan
        return {key: value for key, value in values.items() if math.isfinite(value)}

    def scores(step: int, module: torch.nn.Module, weights: Callable[[], Weights]) -> dict[str, float]:
        if body is None:
            return losses(module, "held_out/")
        depth = body.trained_layers(step)
        values = losses(module, "held_out/", depth=depth)
        if step in body.snapshots:
            whole = body.plugged(module, weights)
            values |= losses(whole, "held_out/body_", depth=body.num_layers)
        return values

    return Evaluation(steps, scores)
