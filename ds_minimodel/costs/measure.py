"""Seconds of real updates of a recipe's step on this machine, before there is text or a body to
train.

The model has fresh weights and the text is random, in sequences of full length: what an update
takes does not depend on either. All else is the training's own: its batches, loop, engine and
files, which lie in a temporary folder.
"""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json_lines
from ds_minimodel.common.random import sample_key
from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import System
from ds_minimodel.costs.plans import model_of
from ds_minimodel.data.samples import Samples
from ds_minimodel.models.flops import Cost
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.pipeline.training import TextStepConfig, micro_batches, text_run, text_steps
from ds_minimodel.training.config import CheckpointPolicy, Schedule, Training
from ds_minimodel.training.loop import train
from ds_minimodel.training.world import World

UNCOUNTED, UPDATES = 5, 20  # updates that do not count, and that do


class RandomText:
    """Batches of random tokens by the numbers of their samples: the objective's, of sequences of
    full length.
    """

    def __init__(self, recipe: Recipe, section: Training, vocab_size: int):
        self.recipe, self.section = recipe, section
        self.vocabulary = Vocabulary(vocab_size, bos=0, pad=1, eos=2, unk=3, mask=4)

    def batch(self, first: int, last: int) -> dict[str, Any]:
        size, length = last - first, self.section.seq_length
        numbers = np.random.default_rng(first).integers(
            self.vocabulary.num_pieces, size=(size, length)
        )
        keys = sample_key(self.recipe.seed, np.zeros(size, np.int64), np.arange(first, last))
        samples = Samples(self.vocabulary.pieces(numbers), np.full(size, length), keys)
        batch = self.recipe.trained_by.batch(samples, self.vocabulary, self.section)
        return {
            **batch,
            "lengths": samples.lengths.astype(np.int32),
            "sample_keys": keys.view(np.int32),
        }


def measured_rows(recipe: Recipe, step: str, world: World) -> list[dict[str, Any]]:
    """Rows as JSON of a step on text, one for each system; UserError where none has that step.

    seconds: of an update; hours: of all the step, in one language.
    """
    rows: list[dict[str, Any]] = []
    for system in recipe.chosen_systems:
        section = text_steps(recipe, [system]).get(step)
        if section is None or (
            step == "pretrain" and system.body_name in {row["body"] for row in rows}
        ):
            continue
        seconds = _seconds(recipe, system, step, section, world)
        rows.append(
            {
                "system": system.name,
                "body": system.body_name,
                "step": step,
                "device": torch.cuda.get_device_name(world.device)
                if world.device.type == "cuda"
                else "CPU",
                "ranks": world.size,
                "seconds": seconds,
                "tokens_per_second": section.batch_size * section.seq_length / seconds,
                "steps": section.steps,
                "hours": section.steps * seconds / 3600,
            }
        )
    if not rows:
        raise UserError(f"--step {step}: the recipe's systems have no such step")
    return rows


def _seconds(recipe: Recipe, system: System, step: str, section: Training, world: World) -> float:
    """Mean seconds of an update."""
    module = model_of(recipe, system, step)
    split_model(module, world.tensor)
    run = text_run(TextStepConfig.of(recipe, training=section), world, Cost(0, 0))
    # At a rate of 0 nothing diverges, and no checkpoint is due.
    run = replace(run, schedule=Schedule(UNCOUNTED + UPDATES, 0.0), checkpoints=CheckpointPolicy())
    vocab_size = recipe.target_vocab_size if step == "adapt" else recipe.source_vocab_size
    batches = micro_batches(RandomText(recipe, section, vocab_size), run, world)

    def mean() -> float:
        rows = read_json_lines(Path(folder, "metrics.jsonl"))[UNCOUNTED:]
        return statistics.fmean(
            run.accounting.tokens_per_step / row["tokens_per_second"] for row in rows
        )

    with tempfile.TemporaryDirectory(prefix="ds-minimodel-") as folder:
        train(module, batches, run, world, folder, f"{step} {system.name}", job="")
        return world.broadcast_from_rank0(mean)
