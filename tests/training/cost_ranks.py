"""What test_costs.py starts on two ranks: steps that are measured, and runs whose depth rises.

Rank 0 writes what it saw to results.json of its folder.
"""

import contextlib
import signal
from unittest import mock

from measure import measure_step
from synthetic import DEPTHS, STEPS, TRAINS, Sampler, model, run_config, same, signal_self

from ds_minimodel.common.files import write_json
from ds_minimodel.ops import product
from ds_minimodel.steps.training import micro_batches
from ds_minimodel.training import loop
from ds_minimodel.training.ranks.launch import Stopped
from ds_minimodel.training.ranks.world import join_ranks

WHOLE, SPLIT = 8, 2  # micro-batch sizes: without and with gradient accumulation
SWITCH = 3  # the step from which on all layers run; before it the mini-model of the first head
RISING = [(0, "fp32"), (1, "bf16"), (2, "fp32"), (3, "bf16")]
KILLED_AFTER = 2  # in the first phase; the resumed run passes the switch


def cases():
    """{name: (what trains, run)} of which memory and traffic are measured."""
    forms = [(0, "fp32", WHOLE), (1, "fp32", WHOLE), (1, "bf16", SPLIT), (2, "bf16", SPLIT), (3, "bf16", WHOLE)]
    return {
        f"{what} {precision} zero{stage} {micro}": (
            what,
            run_config(zero_stage=stage, precision=precision, micro_batch_size=micro),
        )
        for what in TRAINS
        for stage, precision, micro in forms
    }


CPU = {"device": "cpu"}
OFFLOADED = {
    f"{precision} zero{stage} {micro} {' '.join(zero)}": run_config(
        zero_stage=stage, precision=precision, micro_batch_size=micro, deepspeed={"zero_optimization": zero}
    )
    for stage, precision, micro, zero in (
        (2, "fp32", WHOLE, {"offload_optimizer": CPU}),
        (2, "bf16", SPLIT, {"offload_optimizer": CPU}),
        (3, "bf16", SPLIT, {"offload_optimizer": CPU}),
        (2, "bf16", WHOLE, {"overlap_comm": True, "reduce_bucket_size": 5000}),
    )
}


def measure(world, what, run):
    """What a step costs on a device that makes bf16 products itself, as the plan has it."""
    with mock.patch.object(product, "has_bf16_products", return_value=True):
        return measure_step(model(what), micro_batches(Sampler, run, world), run, world)


def rising(run, world):
    """Batches of a run that trains over the mini-model first and over the whole body then."""
    batches = micro_batches(Sampler, run, world)
    shallow, deep = DEPTHS
    return lambda step: [{**batch, "depth": shallow if step < SWITCH else deep} for batch in batches(step)]


def resumed_over_a_switch(world, folder, run):
    """Whether a run that is stopped in one phase and goes on into the next ends with an undisturbed run's bits."""

    def train(where, module, **options):
        return loop.train(module, rising(run, world), run, world, where, "rising", "job", **options)

    weights = train(folder / "undisturbed", model("adapt"))
    with contextlib.suppress(Stopped):
        train(
            folder / "stopped",
            model("adapt"),
            snapshot_steps=(KILLED_AFTER,),
            on_snapshot=signal_self(signal.SIGTERM) if world.is_main else lambda *_: None,
        )
    start_of_second = int((folder / "stopped" / "checkpoints" / "latest").read_text().removeprefix("step-"))
    resumed = train(folder / "stopped", other_start())
    return [start_of_second, same(resumed, weights)]


def other_start():
    """What trains begins elsewhere, so that what a checkpoint failed to restore would be seen."""
    module, right = model("adapt", seed=1), model("adapt")
    frozen = {name: weight for name, weight in right.state_dict().items() if not name.startswith("pack.")}
    module.load_state_dict(frozen, strict=False)
    return module


def main(folder):
    world = join_ranks()
    results = {"costs": {name: measure(world, what, run) for name, (what, run) in cases().items()}}
    results["offloaded"] = {name: measure(world, "pretrain", run) for name, run in OFFLOADED.items()}
    results["rising"] = {
        f"{precision} zero{stage}": resumed_over_a_switch(
            world,
            folder / f"{precision}-{stage}",
            run_config(
                steps=STEPS,
                zero_stage=stage,
                precision=precision,
                phases=((SWITCH, 1.0, 1.0), (STEPS - SWITCH, 2.0, 2.0)),
            ),
        )
        for stage, precision in RISING
    }
    if world.is_main:
        write_json(folder / "results.json", results)
