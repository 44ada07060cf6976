"""What the tests start as ranks: runs at every stage, steps that are measured, and runs that kill
themselves.

Rank 0 of `parity` and of `costs` writes what it saw to results.json of its folder.
"""

import copy
import os
import signal
from pathlib import Path
from unittest import mock

import torch
from synthetic import (
    TRAINS,
    Sampler,
    losses,
    model,
    observe,
    resume,
    run_config,
    same,
    signal_self,
    train,
    weights_of,
)
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel.common import files
from ds_minimodel.common.errors import OtherRankError, UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.launch.process import Stopped
from ds_minimodel.ops import matmul as product
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.memory import held_between_steps
from ds_minimodel.pipeline.plan import ring, traffic_of_step
from ds_minimodel.pipeline.training import micro_batches
from ds_minimodel.training.loop import optimizer_step
from ds_minimodel.training.partition import partition_of_run
from ds_minimodel.training.world import join_ranks
from ds_minimodel.training.zero.engine import build_engine, destroy
from ds_minimodel.training.zero.state import adamw_of, read_masters, vectors
from tests.saved import saved_bytes, storage_bytes, tensors_in

# Micro-batch sizes: without and with gradient accumulation
WHOLE = 8
SPLIT = 2


def named_runs(*forms):
    """{name: (what trains, run)} of forms (what trains, precision, micro-batch size, ZeRO
    stages).
    """
    return {
        f"{what} {precision} zero{stage} {micro}": (
            what,
            run_config(zero_stage=stage, precision=precision, micro_batch_size=micro),
        )
        for what, precision, micro, stages in forms
        for stage in stages
    }


# --- The same run at every stage, on any number of ranks


# What trains the same gives the same losses, whatever the precision, but for its rounding.
PARITY = named_runs(
    ("pretrain", "fp32", WHOLE, (0, 1, 2, 3)),
    ("pretrain", "bf16", SPLIT, (3,)),
    ("adapt", "bf16", WHOLE, (0, 1, 2)),
    ("build-mini", "fp32", WHOLE, (0,)),
    ("build-mini", "fp32", SPLIT, (2,)),
)
RESUMED = {
    f"{precision} zero{stage}": run_config(zero_stage=stage, precision=precision)
    for precision, stage in (("fp32", 1), ("bf16", 2), ("bf16", 3))
}
# What one rank began at stage 1 and two go on with.
OTHER_STAGES = {f"zero{stage}": run_config(zero_stage=stage) for stage in (0, 3)}


def observe_all(world, folder):
    return {name: observe(world, folder / name, run, what) for name, (what, run) in PARITY.items()}


def resumed_equals_uninterrupted(world, folder, run):
    """Stop by a signal to rank 0 alone, and go on."""
    weights = train(world, folder / "uninterrupted", run)
    on_snapshot = signal_self(signal.SIGTERM) if world.is_main else lambda *_: None
    try:
        train(world, folder / "stopped", run, snapshot_steps=(3,), on_snapshot=on_snapshot)
    except Stopped as stopped:
        number = int(stopped.signal_number)
    assert world.all_gather_object(lambda: number) == [signal.SIGTERM] * 2
    return same(resume(world, folder / "stopped", run), weights)


def goes_on_at_another_stage(world, folder, run):
    """Losses of a run of one rank that two go on with, at another stage."""
    resume(world, folder, run)
    return losses(folder)


def odd_masters_survive(world, stage):
    """Parameters whose elements cannot be divided among two ranks keep the bits of their fp32
    originals.
    """
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3)
    original = weights_of(module)
    small_too = {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    engine = build_engine(module, run_config(zero_stage=stage, precision="bf16"), world, small_too)
    return same(read_masters(engine), original)


def crash():
    raise UserError("only rank 0 saw it")


def refusals(world, action):
    """What each rank is told where `action` is refused."""
    try:
        action()
    except (UserError, OtherRankError) as error:
        message = str(error)
    return world.all_gather_object(lambda: message)


def kill_rank_1_in_second_save(world, folder):
    if world.rank == 1:  # it writes one file a save: its part of the optimizer
        kill_in(torch, "save", calls_before=1)
    train(world, folder, run_config(zero_stage=2, checkpoint_every=2))


def parity(folder):
    """Go on in `folder`/one-rank with runs begun on one rank. At the end rank 1 kills itself in a
    save.
    """
    world = join_ranks()
    results = {"cases": observe_all(world, folder)}
    results["resumed"] = {
        name: resumed_equals_uninterrupted(world, folder / name, run)
        for name, run in RESUMED.items()
    }
    stopped = folder / "fp32 zero1/stopped"
    results["another job"] = refusals(
        world, lambda: train(world, stopped, run_config(zero_stage=1), model(), job="another")
    )
    results["shared error"] = refusals(world, lambda: world.broadcast_from_rank0(crash))
    results["other stages"] = {
        name: goes_on_at_another_stage(world, folder / "one-rank" / name, run)
        for name, run in OTHER_STAGES.items()
    }
    results["odd"] = [odd_masters_survive(world, stage) for stage in range(4)]
    if world.is_main:
        write_json(folder / "results.json", results)
    kill_rank_1_in_second_save(world, folder / "killed")


# --- Runs that SIGKILL themselves in their second save, which a thread does


KILLED = run_config(zero_stage=1, checkpoint_every=1, keep_last=3)
# Where one dies: the function, and how many calls of it come before. A save writes two files.
PLACES = {
    "writing": (torch, "save", 3),
    "verifying": (files, "sha256_of_file", 3),
    "listing": (files, "write_json", 1),
    "renaming": (Path, "rename", 1),
    "pointing": (files, "atomic_write", 4),
}


def kill_in(owner, name, calls_before):
    """Let this process kill itself in a later call of a function."""
    original = getattr(owner, name)
    calls = []

    def call_or_die(*arguments, **options):
        if len(calls) == calls_before:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(arguments)
        return original(*arguments, **options)

    setattr(owner, name, call_or_die)


def killed_in_second_save(folder, place):
    kill_in(*PLACES[place])
    train(join_ranks(), folder, KILLED)


# --- What an optimizer step really holds and sends, beside what the plan said of it


COLLECTIVES = {
    "allreduce_": "all-reduce",
    "allgather_": "all-gather",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
}
SMALL = 64  # bytes: flags and norms are reduced too, whatever trains


class Ledger(TorchDispatchMode):
    """Counts what code sends. sent: (collective, bytes of the whole tensor, ranks) in order, as
    c10d's operators are called.
    """

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        result = op(*arguments, **(options or {}))
        if op.namespace == "c10d":
            sizes = [
                sum(tensor.nbytes for tensor in tensors_in(argument)) for argument in arguments
            ]
            group = next(
                ProcessGroup.unbox(argument)
                for argument in arguments
                if isinstance(argument, torch.ScriptObject)
            )
            self.sent.append((op._overloadpacket.__name__, max(sizes, default=0), group.size()))
        return result


def measure_step(module, batches, run, world):
    """Train three steps; of the third {"measured": …, "planned": …}, bytes on this rank by kind.

    Arguments as of loop.train. `weights` and `optimizer` are the storages that hold them between
    steps, `activations` what one micro-batch leaves for its backward pass. `sent` counts the
    collectives by the ring algorithm; the plan does not know those within a replica.
    """
    partition = partition_of_run(module, run, world)
    copied = copy.deepcopy(module).to(DTYPES[run.execution.precision])
    activations = saved_bytes(copied, batches(0)[0])
    engine = build_engine(module, run, world, partition.zero, partition.whole)
    for step in range(3):
        micro_batches = batches(step)
        (count,) = world.sum(sum(batch["count"] for batch in micro_batches))
        with Ledger() as ledger:
            optimizer_step(engine, micro_batches, max(1, count), run, world, step)
    measured = {
        "weights": _weights(engine.module),
        "optimizer": _optimizer(engine),
        "activations": activations,
    }
    destroy(engine)
    sent = {}
    for operator, size, ranks in ledger.sent:
        if size > SMALL:
            name = COLLECTIVES[operator]
            sent[name] = sent.get(name, 0) + ring(size, ranks, name)
    weights, _, optimizer = held_between_steps(partition)
    planned = {"weights": weights, "optimizer": optimizer, "sent": traffic_of_step(partition)}
    return {"measured": measured | {"sent": sent}, "planned": planned}


def _weights(module):
    """Parameters, buffers, and stage 3's partitions."""
    tensors = [*module.parameters(), *module.buffers()]
    return storage_bytes(
        tensors + [tensor.ds_tensor for tensor in tensors if hasattr(tensor, "ds_tensor")]
    )


def _optimizer(engine):
    """Adam's state, and the fp32 copies that are not the module's own parameters."""
    state = tensors_in(list(adamw_of(engine).state.values()))
    return storage_bytes([*vectors(engine), *state], without=engine.module.parameters())


MEASURED: dict = {}
for trained in TRAINS:
    MEASURED |= named_runs(
        (trained, "fp32", WHOLE, (0, 1)),
        (trained, "bf16", SPLIT, (1, 2)),
        (trained, "bf16", WHOLE, (3,)),
    )
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
OFFLOADED = {
    f"{precision} zero{stage} {micro} {' '.join(zero)}": run_config(
        zero_stage=stage,
        precision=precision,
        micro_batch_size=micro,
        deepspeed={"zero_optimization": zero},
    )
    for stage, precision, micro, zero in (
        (2, "fp32", WHOLE, OFFLOAD),
        (2, "bf16", SPLIT, OFFLOAD),
        (3, "bf16", SPLIT, OFFLOAD),
        (2, "bf16", WHOLE, {"overlap_comm": True, "reduce_bucket_size": 5000}),
    )
}


def measure(world, what, run):
    """What a step costs on a device that makes bf16 products itself, as the plan has it."""
    with mock.patch.object(product, "has_bf16_products", return_value=True):
        return measure_step(model(what), micro_batches(Sampler, run, world), run, world)


def costs(folder):
    world = join_ranks()
    results = {name: measure(world, what, run) for name, (what, run) in MEASURED.items()}
    results |= {name: measure(world, "pretrain", run) for name, run in OFFLOADED.items()}
    if world.is_main:
        write_json(folder / "results.json", results)
