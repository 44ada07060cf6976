"""What test_parity.py starts on two ranks: many runs in one group of processes.

The folder one-rank in theirs holds runs begun on one rank. Rank 0 writes what it saw to results.json; then rank 1 kills
itself in a save.
"""

import os
import signal
from unittest import mock

import torch
from synthetic import (
    losses,
    model,
    observe,
    resume,
    run_config,
    same,
    signal_self,
    small_parameters_partitioned,
    train,
    weights_of,
)

from ds_minimodel.common.errors import OtherRankFailed, UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.training.ranks.launch import Stopped
from ds_minimodel.training.ranks.world import join_ranks
from ds_minimodel.training.zero.engine import build_engine
from ds_minimodel.training.zero.state import read_masters

WHOLE, SPLIT = 8, 2  # micro-batch sizes: without and with gradient accumulation
RESUMED = {
    f"{precision} zero{stage}": run_config(zero_stage=stage, precision=precision)
    for precision, stage in (("fp32", 1), ("bf16", 0), ("bf16", 1), ("bf16", 2), ("bf16", 3))
}
# What one rank began at stage 1 and two go on with.
OTHER_STAGES = {f"zero{stage}": run_config(zero_stage=stage) for stage in (0, 1, 3)}


def cases():
    """{name: (what trains, run)} that must give the same losses on any number of ranks."""
    chosen = {(what, "fp32", WHOLE) for what in ("pretrain", "adapt", "build-mini")}
    chosen |= {("pretrain", "fp32", SPLIT), ("pretrain", "bf16", WHOLE), ("adapt", "bf16", SPLIT)}
    return {
        f"{what} {precision} zero{stage} {micro}": (
            what,
            run_config(zero_stage=stage, precision=precision, micro_batch_size=micro),
        )
        for what, precision, micro in sorted(chosen)
        for stage in range(4)
    }


def observe_cases(world, folder):
    return {name: observe(world, folder / name, run, what) for name, (what, run) in cases().items()}


def resumed_equals_uninterrupted(world, folder, run):
    """Stop by a signal to rank 0 alone, and go on."""
    weights = train(world, folder / "uninterrupted", run)
    try:
        train(
            world,
            folder / "stopped",
            run,
            snapshot_steps=(3,),
            on_snapshot=signal_self(signal.SIGTERM) if world.is_main else lambda *_: None,
        )
    except Stopped as stopped:
        number = int(stopped.signal_number)
    numbers = world.gather(lambda: number)
    return numbers == [signal.SIGTERM] * 2 and same(resume(world, folder / "stopped", run), weights)


def goes_on_at_another_stage(world, folder, run):
    """Losses of a run of one rank that two go on with, at another stage."""
    resume(world, folder, run)
    return losses(folder)


def odd_masters_survive(world, stage):
    """Parameters whose elements cannot be divided among two ranks keep the bits of their fp32 originals."""
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3)
    original = weights_of(module)
    with small_parameters_partitioned():
        engine = build_engine(module, run_config(zero_stage=stage, precision="bf16"), world)
    return same(read_masters(engine), original)


def refusals(world, folder, run):
    try:
        train(world, folder, run, model(), job="another")
    except (UserError, OtherRankFailed) as error:
        message = str(error)
    return world.gather(lambda: message)


def crash():
    raise UserError("only rank 0 saw it")


def shared_error(world):
    try:
        world.from_main(crash)
    except (UserError, OtherRankFailed) as error:
        message = str(error)
    return world.gather(lambda: message)


def kill_rank_1_in_second_save(world, folder):
    save, calls = torch.save, []

    def save_or_die(*arguments, **options):
        calls.append(arguments)
        if world.rank == 1 and len(calls) == 2:  # it writes one file a save: its part of the optimizer
            os.kill(os.getpid(), signal.SIGKILL)
        return save(*arguments, **options)

    with mock.patch.object(torch, "save", save_or_die):
        train(world, folder, run_config(zero_stage=2, checkpoint_every=2))


def main(folder):
    world = join_ranks()
    results = {"cases": observe_cases(world, folder)}
    results["resumed"] = {
        name: resumed_equals_uninterrupted(world, folder / name, run) for name, run in RESUMED.items()
    }
    results["refusals"] = refusals(world, folder / "fp32 zero1" / "stopped", run_config(zero_stage=1))
    results["other stages"] = {
        name: goes_on_at_another_stage(world, folder / "one-rank" / name, run) for name, run in OTHER_STAGES.items()
    }
    results["odd"] = [odd_masters_survive(world, stage) for stage in range(4)]
    results["shared_error"] = shared_error(world)
    results["sums"] = world.sum(world.rank + 1, 10)
    from_main = world.from_main(lambda: world.rank)
    results["from_main"] = world.gather(lambda: from_main)
    if world.is_main:
        write_json(folder / "results.json", results)
    kill_rank_1_in_second_save(world, folder / "killed")
