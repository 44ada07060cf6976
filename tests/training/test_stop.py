"""Stops and crashes: a run that goes on ends with the bits of one that was never disturbed."""

import math
import signal

import pytest
import torch
from synthetic import STEPS, crash, losses, model, resume, run_config, same, signal_self, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ds_minimodel.common.files import read_json_lines
from ds_minimodel.launch.process import Stopped
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "what, run",
    [
        *(("pretrain", run_config(zero_stage=stage, precision="bf16")) for stage in range(4)),
        *(("adapt", run_config(zero_stage=stage)) for stage in range(4)),
        ("pretrain", run_config(zero_stage=1, precision="bf16", micro_batch_size=2, clip=0.1)),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bits(world, uninterrupted, tmp_path, what, run):
    weights, all_losses = uninterrupted(run, what)
    with pytest.raises(Stopped):
        train(world, tmp_path, run, model(what), (3,), signal_self(signal.SIGTERM))
    assert losses(tmp_path) == all_losses[:3]
    assert same(resume(world, tmp_path, run, what), weights)
    assert losses(tmp_path) == all_losses


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends(world, tmp_path, number):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match=f"stopped after step 2 of {STEPS}") as stopped:
        train(world, tmp_path, run_config(), snapshot_steps=(2,), on_snapshot=signal_self(number))
    assert stopped.value.signal_number == number
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000002"
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "second, ends", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)]
)
def test_an_interrupt_after_a_signal_ends_at_once_but_not_the_launchers(
    world, tmp_path, first, second, ends
):
    with pytest.raises(ends):
        train(world, tmp_path, run_config(), model(), (2,), signal_self(first, second))
    assert (
        (tmp_path / "checkpoints").exists()
        == (tmp_path / "checkpoints/latest").is_file()
        == (ends is Stopped)
    )


def test_a_signal_in_the_last_step_is_heeded(world, uninterrupted, tmp_path):
    run = run_config()
    with pytest.raises(Stopped, match=f"stopped after step {STEPS} of {STEPS}"):
        train(
            world, tmp_path, run, snapshot_steps=(STEPS,), on_snapshot=signal_self(signal.SIGTERM)
        )
    assert same(resume(world, tmp_path, run), uninterrupted(run)[0])
    assert losses(tmp_path) == uninterrupted(run)[1]


def test_snapshots_are_of_the_steps_asked_for(world, uninterrupted, tmp_path):
    run = run_config(precision="bf16")
    seen = {}
    initial = dict(model().named_parameters())
    weights = train(world, tmp_path, run, snapshot_steps=(0, 4, STEPS), on_snapshot=seen.setdefault)
    assert list(seen) == [0, 4, STEPS]
    assert same(seen[0], initial)  # fp32, not what bf16 keeps of it
    assert same(seen[STEPS], weights)
    assert not same(seen[4], weights)


def test_metrics_after_a_crash_go_on_without_gap_or_duplicate(world, uninterrupted, tmp_path):
    """The crash comes after step 4, the checkpoint after step 3: step 4 is written again."""
    run = run_config(checkpoint_every=3)
    crash(world, tmp_path, run)
    path = tmp_path / "metrics.jsonl"
    assert [record["step"] for record in read_json_lines(path)] == [1, 2, 3, 4]
    with open(path, "a") as file:
        file.write('{"step": 5, "lo')  # cut short by a kill
    resume(world, tmp_path, run)
    records = read_json_lines(path)
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert [record["loss"] for record in records] == uninterrupted(run)[1]
    events = EventAccumulator(str(tmp_path / "events")).Reload().Scalars("loss")
    assert [event.step for event in events] == list(range(1, STEPS + 1))


def test_metrics_say_what_the_run_costs(world, tmp_path):
    run = run_config(formula_flops=1e17, executed_flops=3e17)
    train(world, tmp_path, run)
    records = read_json_lines(tmp_path / "metrics.jsonl")
    assert [record["eflops"] for record in records] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert [record["executed_eflops"] for record in records] == pytest.approx(
        [0.3, 0.6, 0.9, 1.2, 1.5, 1.8]
    )
    assert [record["lr"] for record in records] == [
        run.schedule.lr_at(step) for step in range(STEPS)
    ]
    for record in records:
        assert record["loss"] == pytest.approx(
            (record["loss/depth_1"] + record["loss/depth_3"]) / 2
        )
        assert record["tokens_per_second"] > 0
        assert record["memory_gib"] > 0


def test_a_loss_that_is_not_finite_ends_the_run(world, tmp_path):
    module = model()
    with torch.no_grad():
        module.pack.bias[5] = math.nan
    with refuses("test: the loss is not finite at step 1; lower lr"):
        train(world, tmp_path, run_config(), module)
    assert not (tmp_path / "checkpoints").exists()
