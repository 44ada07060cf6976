"""The source's text as the whole body sees it, by which new pieces are kept from taking its probability."""

import torch

from ds_minimodel.artifacts.models import load_model
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models.trainable import Guard, encode, to_tensors
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import text_sampler, whole_model
from ds_minimodel.training.run import Run

TOKENS = 16_384  # of the source's text; where all positions are read, their states take 36 MiB at a width of 576
ROWS = 1024  # of scores at once


def source_guard(context: Context, system: System, run: Run) -> Guard:
    """The Guard of an added language, by the first samples of the source's text: the same on all ranks.

    The whole body is in memory beside the one that trains while it reads. Its FLOPs, those of some steps, and the
    guard's, some thousandths of each step, are not in the costs.
    """
    recipe, world, section = context.recipe, context.world, context.recipe.adapt
    body, source = load_model(context.layout.model(system))
    model = whole_model(recipe, world, run, body, source)
    (head,), sampler = model.body.heads.values(), text_sampler(context, section, recipe.languages.source)
    states, log_sums, last = [], [], max(1, TOKENS // section.seq_length)
    with torch.no_grad():
        for first in range(0, last, run.execution.micro_batch_size):
            rows = sampler.rows(first, min(last, first + run.execution.micro_batch_size))
            batch = to_tensors(rows, world.device)
            (x_BMH,), table = encode(model.pack, model.body, batch)
            x_PH = head(x_BMH.flatten(0, 1)[batch["targets"].flatten() != IGNORED])
            states.append(x_PH)
            log_sums += [model.pack.log_sums(x_RH, table) for x_RH in x_PH.split(ROWS)]
    targets = int(recipe.trained_by.share_read(section) * section.seq_length)
    return Guard(torch.cat(states), torch.cat(log_sums), section.guard, max(1, targets // 4))
