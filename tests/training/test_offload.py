"""Optimizer state in host memory: the same bits as without, through a stop and in both directions."""

import contextlib
import signal

import pytest
from synthetic import resume, run_config, same, signal_self, train

from ds_minimodel.training.ranks.process import Stopped

OPTIMIZER = {"offload_optimizer": {"device": "cpu"}}
FORMS = [(2, "fp32", 8), (2, "bf16", 2), (3, "bf16", 2)]


def two_runs(stage, precision, micro, **changes):
    """A run without and one with offloading."""
    changes |= {"zero_stage": stage, "precision": precision, "micro_batch_size": micro}
    return run_config(**changes), run_config(**changes, deepspeed={"zero_optimization": OPTIMIZER})


@pytest.mark.parametrize("stage, precision, micro", FORMS)
def test_offloading_changes_no_bit(world, uninterrupted, tmp_path, stage, precision, micro):
    plain, offloaded = two_runs(stage, precision, micro)
    assert same(train(world, tmp_path, offloaded), uninterrupted(plain)[0])


@pytest.mark.parametrize("offloads_then", [True, False])
@pytest.mark.parametrize("stage, precision, micro", FORMS[1:])
def test_a_stopped_run_goes_on_with_and_without(world, uninterrupted, tmp_path, stage, precision, micro, offloads_then):
    plain, offloaded = two_runs(stage, precision, micro)
    with contextlib.suppress(Stopped):
        train(world, tmp_path, offloaded, snapshot_steps=(3,), on_snapshot=signal_self(signal.SIGTERM))
    weights = resume(world, tmp_path, offloaded if offloads_then else plain)
    assert same(weights, uninterrupted(plain)[0])
