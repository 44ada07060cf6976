"""What the guard of step 2 reads: the source's text as the whole body sees it."""

import torch

from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models.artifacts import load_body, load_pack, plug
from ds_minimodel.models.split import split_model
from ds_minimodel.models.trainable import Guard, encode, load_into, to_tensors
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.context import Context
from ds_minimodel.steps.training import language_model, text_sampler
from ds_minimodel.training.run import Run

STATES = 16_384  # 36 MiB in fp32 at a width of 576
ROWS = 1024  # of scores at once


def source_guard(context: Context, system: System, run: Run) -> Guard:
    """The Guard of an added language, of the first samples of the source's text; the same on all ranks.

    Takes the whole body beside the one that trains while it reads.
    """
    recipe, layout, world = context.recipe, context.layout, context.world
    folder = layout.pretrain(system)
    body, sampler = load_body(folder / "body"), text_sampler(context, recipe.adapt, recipe.languages.source)
    pack = load_pack(folder / "pack", body.space)
    with torch.random.fork_rng(devices=[]):
        model = language_model(recipe, body.config, body.head_depths, len(pack.tensors["tokens"]))
    load_into(model, body.tensors, "body.")
    plug(model, pack)
    split_model(model, world.tensor)
    model = model.to(world.device, DTYPES[run.execution.precision]).eval()
    depth, size = body.config.num_layers, run.execution.micro_batch_size
    states, log_sums, found, first = [], [], 0, 0
    with torch.no_grad():
        while found < STATES:
            batch = to_tensors(sampler.rows(first, first + size), world.device)
            (x_BMH,), table = encode(model.pack, model.body, batch, [depth])
            x_PH = model.body.heads[str(depth)](x_BMH.flatten(0, 1)[batch["targets"].flatten() != IGNORED])
            states.append(x_PH)
            log_sums += [model.pack.log_sums(x_RH, table) for x_RH in x_PH.split(ROWS)]
            found, first = found + len(x_PH), first + size
    return Guard(torch.cat(states), torch.cat(log_sums), recipe.adapt.guard)
