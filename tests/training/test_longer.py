"""Runs whose rate stays until it falls at the end; that longer ones go on: tests/pipeline/test_longer.py."""

from synthetic import run_config, train

from ds_minimodel.training.config import Schedule


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def test_the_rate_stays_and_then_falls():
    short, long = Schedule(6, 0.7, 2, 2), Schedule(9, 0.7, 2, 3)
    assert [short.lr_at(step) for step in range(6)] == [0.35, 0.7, 0.7, 0.7, 0.7, 0.35]
    assert (short.stable_steps, long.stable_steps, Schedule(6, 0.7, 2).stable_steps) == (4, 6, 0)
    assert all(short.lr_at(step) == long.lr_at(step) for step in range(short.stable_steps))


def test_the_step_before_the_fall_stays_however_few_are_kept(world, tmp_path):
    train(world, tmp_path, run_config(steps=8, decay_steps=4, checkpoint_every=1, keep_last=1))
    assert checkpoints(tmp_path) == ["step-00000004", "step-00000007"]
