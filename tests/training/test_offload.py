"""Optimizer state in host memory: the same bits as without, through a stop and in both
directions.
"""

import contextlib
import signal

import pytest
from synthetic import resume, run_config, same, signal_self, train

from ds_minimodel.launch.process import Stopped

pytestmark = pytest.mark.slow

OPTIMIZER = {"offload_optimizer": {"device": "cpu"}}


def two_runs(stage, precision, micro, **changes):
    """A run without and one with offloading."""
    changes |= {"zero_stage": stage, "precision": precision, "micro_batch_size": micro}
    return run_config(**changes), run_config(**changes, deepspeed={"zero_optimization": OPTIMIZER})


@pytest.mark.parametrize(
    "stage, precision, micro, offloads_then",
    [
        (2, "fp32", 8, True),
        *((stage, "bf16", 2, then) for stage in (2, 3) for then in (True, False)),
    ],
)
def test_a_stopped_run_goes_on_with_and_without(
    world, uninterrupted, tmp_path, stage, precision, micro, offloads_then
):
    plain, offloaded = two_runs(stage, precision, micro)
    with contextlib.suppress(Stopped):
        train(
            world, tmp_path, offloaded, snapshot_steps=(3,), on_snapshot=signal_self(signal.SIGTERM)
        )
    weights = resume(world, tmp_path, offloaded if offloads_then else plain)
    assert same(weights, uninterrupted(plain)[0])
