"""Runs whose rate stays until it falls at the end: a longer one goes on from the step before the fall."""

import signal

import pytest
from synthetic import losses, model, other_start, resume, run_config, same, signal_self, train

from ds_minimodel.training.checkpoints.storage import drop_all
from ds_minimodel.training.config import Schedule
from ds_minimodel.training.ranks.process import Stopped

SHORT, LONG = {"steps": 6, "decay_steps": 2}, {"steps": 9, "decay_steps": 3}


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def test_the_rate_stays_and_then_falls():
    short, long = Schedule(6, 0.7, 2, 2), Schedule(9, 0.7, 2, 3)
    assert [short.lr_at(step) for step in range(6)] == [0.35, 0.7, 0.7, 0.7, 0.7, 0.35]
    assert (short.stable_steps, long.stable_steps, Schedule(6, 0.7, 2).stable_steps) == (4, 6, 0)
    assert all(short.lr_at(step) == long.lr_at(step) for step in range(short.stable_steps))


@pytest.mark.parametrize("precision, stage", [("fp32", 0), ("fp32", 1), ("bf16", 1), ("bf16", 2), ("bf16", 3)])
@pytest.mark.parametrize("is_done", [True, False], ids=["finished", "unfinished"])
def test_a_longer_run_ends_with_the_bits_of_an_undisturbed_one(
    world, uninterrupted, tmp_path, precision, stage, is_done
):
    """The shorter one was stopped in its fall, and the longer one is in its own."""
    form = {"zero_stage": stage, "precision": precision}
    short, long = run_config(**form, **SHORT), run_config(**form, **LONG)
    with pytest.raises(Stopped):
        train(world, tmp_path, short, model("adapt"), (5,), signal_self(signal.SIGTERM))
    assert checkpoints(tmp_path) == ["step-00000004", "step-00000005"]
    if is_done:
        assert same(resume(world, tmp_path, short, "adapt"), uninterrupted(short, "adapt")[0])
    drop_all(tmp_path / "checkpoints", short.schedule.stable_steps)
    assert checkpoints(tmp_path) == ["step-00000004"]
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000004"
    with pytest.raises(Stopped):
        train(world, tmp_path, long, other_start("adapt"), (8,), signal_self(signal.SIGTERM))
    assert checkpoints(tmp_path) == ["step-00000006", "step-00000008"]
    assert same(resume(world, tmp_path, long, "adapt"), uninterrupted(long, "adapt")[0])
    assert losses(tmp_path) == uninterrupted(long, "adapt")[1]


def test_the_step_before_the_fall_stays_however_few_are_kept(world, tmp_path):
    train(world, tmp_path, run_config(steps=8, decay_steps=4, checkpoint_every=1, keep_last=1))
    assert checkpoints(tmp_path) == ["step-00000004", "step-00000007"]
