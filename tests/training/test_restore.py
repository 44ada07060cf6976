"""A run goes on at another ZeRO stage and on another number of ranks."""

from unittest import mock

import pytest
from synthetic import crash, losses, resume, run_config, same, train

from ds_minimodel.training.checkpoints.checkpoints import Checkpoints

pytestmark = pytest.mark.slow

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}


@pytest.mark.parametrize(
    "precision, before, after",
    [
        *(("fp32", before, after) for before, after in ((0, 1), (1, 3), (3, 2), (2, 0))),
        *(("bf16", before, after) for before, after in ((1, 0), (3, 1), (2, 3), (0, 2))),
    ],
)
def test_another_stage_goes_on_with_the_same_losses(
    world, uninterrupted, tmp_path, precision, before, after
):
    run = run_config(zero_stage=before, precision=precision, checkpoint_every=4)
    what = "adapt" if before % 2 else "pretrain"
    crash(world, tmp_path, run, what)
    resume(world, tmp_path, run_config(zero_stage=after, precision=precision), what)
    expected = uninterrupted(run, what)[1]
    assert losses(tmp_path)[:4] == expected[:4]
    assert losses(tmp_path) == pytest.approx(expected, abs=BOUNDS[precision], rel=0)


@pytest.mark.parametrize("stage", [0, 3])
def test_fp16_goes_on_to_the_same_bits(world, tmp_path, fp16_on_cpu, stage):
    """Other precisions are in test_stop.py."""
    run = run_config(zero_stage=stage, precision="fp16", checkpoint_every=4)
    weights = train(world, tmp_path / "uninterrupted", run)
    crash(world, tmp_path / "crashed", run)
    assert same(resume(world, tmp_path / "crashed", run), weights)


def test_the_loss_scale_goes_along(world, tmp_path, fp16_on_cpu):
    """fp16 whose loss scale has fallen after an overflow."""
    run = run_config(zero_stage=1, precision="fp16", checkpoint_every=2, lr=1e-3)
    scales = {}
    step = Checkpoints.save

    def spoil(self, number):
        self.engine.optimizer.loss_scaler.cur_scale = 8.0
        self.engine.optimizer.loss_scaler.last_overflow_iter = 1
        step(self, number)

    with mock.patch.object(Checkpoints, "save", spoil):
        crash(world, tmp_path, run)
    for stage in (0, 1, 3):
        load = Checkpoints.load_newest

        def look(self, stage=stage):
            load(self)
            scales[stage] = self.engine.optimizer.loss_scale
            raise RuntimeError("seen")

        with (
            mock.patch.object(Checkpoints, "load_newest", look),
            pytest.raises(RuntimeError, match="seen"),
        ):
            resume(world, tmp_path, run_config(zero_stage=stage, precision="fp16"))
    assert scales == {0: 8.0, 1: 8.0, 3: 8.0}
