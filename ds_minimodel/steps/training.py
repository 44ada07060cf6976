"""What the training steps share: a resolved run, batches as tensors, a module's parameters as they train."""

from functools import partial

from ds_minimodel.costs.flops import Work, step_flops
from ds_minimodel.data.blocks import BlockTable
from ds_minimodel.data.mlm import MlmSampler
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.engine.checkpoints.storage import CheckpointPolicy
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.run import Accounting, Optimizer, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.model.heads import to_tensors
from ds_minimodel.ops.precision import resolve_precision


def run_config(
    recipe, section, world, *, steps, batch_size, lr, warmup_steps, tokens_per_step, phases, micro_batch_size=None
):
    """The Run of a recipe's section (optimizer values), its engine and checkpoint settings.

    micro_batch_size: where it is not the recipe's.
    """
    engine, kept = recipe.engine, recipe.checkpoint
    precision = world.same_on_all_ranks(lambda: resolve_precision(engine.precision, world.device))
    return Run(
        Schedule(steps, lr, warmup_steps),
        Execution(batch_size, micro_batch_size or engine.micro_batch_size, engine.zero_stage, precision),
        Accounting(tokens_per_step, phases),
        Optimizer(section.weight_decay, section.beta1, section.beta2, section.eps, section.clip),
        CheckpointPolicy(kept.every, kept.keep_last, kept.keep_every),
    )


def masked_lm_sampler(recipe, section, layout, language, world):
    """Samples of a masked-LM step on one language's text."""
    tokenizer = open_tokenizer(layout.tokenizer(language))
    store = TokenStore(layout.tokens(language), tokenizer.sha256)
    table = partial(BlockTable, store, recipe.data.blocks, section.seq_length)
    world.from_main(lambda: len(table()))  # builds it; the other ranks, on the same disk, only open it
    return MlmSampler(store, table(), section.mask_prob, recipe.seed)


def masked_lm_run(recipe, section, world, phases):
    """Run of a masked-LM step. `phases`: (steps, Cost of one step) each."""
    return run_config(
        recipe,
        section,
        world,
        steps=section.steps,
        batch_size=section.batch_size,
        lr=section.lr,
        warmup_steps=section.warmup_steps,
        tokens_per_step=section.batch_size * section.seq_length,
        phases=tuple((steps, cost.formula, cost.executed) for steps, cost in phases),
    )


def masked_lm_cost(recipe, section, vocab_size, step, depths, frozen_layers=0):
    """Cost of one optimizer step of a masked-LM step of the pipeline."""
    work = Work(
        recipe.model.hidden_size,
        recipe.model.ffn_size,
        vocab_size,
        section.seq_length,
        section.mask_prob,
        section.batch_size,
    )
    return step_flops(step, work, depths, frozen_layers)


def micro_batches(sampler, run, world):
    """A function of the step: this rank's micro-batches of it, as torch tensors.

    `sampler.rows(first, last)` gives the samples with these global numbers; step s takes the numbers
    [s * batch_size, (s + 1) * batch_size), whatever the number of ranks and the size of a micro-batch.
    """
    data, batch_size = world.data, run.execution.batch_size
    micro, accumulation = world.same_on_all_ranks(lambda: run.execution.split(data.size))

    def batches(step):
        first = step * batch_size + data.rank * micro
        starts = (first + index * data.size * micro for index in range(accumulation))
        return [to_tensors(sampler.rows(start, start + micro)) for start in starts]

    return batches
