"""Numbers of a run: learning rate, cost, split of a batch, DeepSpeed's JSON, run.json."""

import pytest
from synthetic import RUN, run_config

from ds_minimodel.training.config import Schedule
from ds_minimodel.training.run import fill_batch, split_batch
from ds_minimodel.training.zero.config import check_deepspeed, deepspeed_config, needed_stage
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.slow


def test_learning_rate_rises_and_falls_linearly():
    run = run_config(steps=10, warmup_steps=4, lr=8e-4)
    assert [run.schedule.lr_at(step) for step in range(4)] == pytest.approx(
        [2e-4, 4e-4, 6e-4, 8e-4]
    )
    assert [run.schedule.lr_at(step) for step in (4, 7, 9, 10)] == pytest.approx(
        [8e-4, 4e-4, 8e-4 / 6, 0]
    )


def test_learning_rate_stays_and_then_falls():
    """That longer runs go on: tests/pipeline/test_longer.py."""
    short = Schedule(6, 0.7, 2, 2)
    long = Schedule(9, 0.7, 2, 3)
    assert [short.lr_at(step) for step in range(6)] == [0.35, 0.7, 0.7, 0.7, 0.7, 0.35]
    assert short.stable_steps == 4
    assert long.stable_steps == 6
    assert Schedule(6, 0.7, 2).stable_steps == 0
    assert all(short.lr_at(step) == long.lr_at(step) for step in range(short.stable_steps))


@pytest.mark.parametrize(
    "batch_size, micro, replicas, split",
    [(2048, 32, 8, (32, 8)), (16, 16, 1, (16, 1)), (16, 64, 2, (8, 1)), (6, 1, 3, (1, 2))],
)
def test_split_of_a_batch(batch_size, micro, replicas, split):
    assert split_batch(batch_size, micro, replicas) == split
    config = deepspeed_config(run_config(batch_size=batch_size, micro_batch_size=micro), replicas)
    assert (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    ) == split


@pytest.mark.parametrize(
    "batch_size, micro, replicas, key",
    [(15, 8, 2, "batch_size 15"), (16, 3, 2, "micro_batch_size 3")],
)
def test_a_batch_that_does_not_divide_is_refused(batch_size, micro, replicas, key):
    with refuses(key):
        split_batch(batch_size, micro, replicas)


@pytest.mark.parametrize(
    "stage, micro, expected", [(0, 8, None), (0, 2, None), (1, 8, None), (1, 2, "fp32")]
)
def test_bf16_accumulates_in_fp32_where_deepspeed_can(stage, micro, expected):
    config = deepspeed_config(
        run_config(zero_stage=stage, precision="bf16", micro_batch_size=micro), 1
    )
    assert config.get("data_types", {}).get("grad_accum_dtype") == expected


@pytest.mark.parametrize(
    "stage, changes, replicas, settings, device, needed",
    [
        (1, {}, 1, {}, "cpu", 0),
        (1, {"micro_batch_size": 2}, 1, {}, "cpu", 0),
        (3, {}, 1, {}, "cpu", 3),
        (1, {}, 2, {}, "cpu", 1),
        (1, {}, 1, {}, "cuda", 1),
        (1, {"precision": "fp16"}, 1, {}, "cpu", 1),
        (1, {"precision": "bf16", "micro_batch_size": 2}, 1, {}, "cpu", 1),
        (1, {"clip": 1.0}, 1, {}, "cpu", 1),
        (2, {}, 1, {"comms_logger": {"enabled": True}}, "cpu", 2),
    ],
)
def test_one_replica_on_a_cpu_partitions_nothing(
    stage, changes, replicas, settings, device, needed
):
    run = run_config(zero_stage=stage, **changes)
    assert needed_stage(run.execution, replicas, 1, run.optimizer.clip, settings, device) == needed


@pytest.mark.parametrize(
    "precision, clip, needed", [("bf16", 1.0, 1), ("bf16", 0.0, 0), ("fp32", 1.0, 0)]
)
def test_parts_of_a_replica_are_clipped_where_deepspeed_can(precision, clip, needed):
    run = run_config(zero_stage=0, precision=precision)
    assert needed_stage(run.execution, 1, 2, clip, {}, "cuda") == needed


@pytest.mark.parametrize(
    "batch_size, micro, replicas, slots",
    [
        (32, 32, 1, 32),
        (32, 8, 4, 32),
        (32, 32, 5, 35),
        (32, 32, 64, 64),
        (32, 5, 1, 35),
        (8, 3, 2, 8),
        (7, 4, 2, 8),
    ],
)
def test_a_filled_batch_divides(batch_size, micro, replicas, slots):
    found, micro_batch = fill_batch(batch_size, micro, replicas)
    assert found == slots
    assert micro_batch <= micro
    size, accumulation = split_batch(found, micro_batch, replicas)
    assert size == micro_batch
    assert size * accumulation * replicas == slots


def test_the_record_of_a_run_has_the_names_that_run_json_has_always_had():
    record = run_config(zero_stage=2, precision="bf16", checkpoint_every=7).record()
    assert record == {**RUN, "zero_stage": 2, "precision": "bf16", "checkpoint_every": 7}


OFFLOADED = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
FILE = {
    "zero_optimization": {"reduce_bucket_size": 1000, "overlap_comm": True},
    "wall_clock_breakdown": True,
    "comms_logger": {"enabled": False},
    "fp16": {"initial_scale_power": 4},
}


def run_with(settings, **changes):
    return run_config(
        **{"batch_size": 16, "zero_stage": 2, "precision": "bf16", **changes}, deepspeed=settings
    )


def test_what_a_file_has_beside_the_recipes_own_holds():
    plain = deepspeed_config(run_with({}), 1, {"reduce_bucket_size": 9})
    config = deepspeed_config(run_with(FILE), 1, {"reduce_bucket_size": 9})
    assert config.pop("wall_clock_breakdown")
    assert config["zero_optimization"] == {
        **plain.pop("zero_optimization"),
        "reduce_bucket_size": 1000,
        "overlap_comm": True,
    }
    del config["zero_optimization"]
    assert config == plain
    in_fp16 = deepspeed_config(run_with(FILE, precision="fp16"), 1)["fp16"]
    assert in_fp16 == {"enabled": True, "initial_scale_power": 4}


def test_an_optimizer_is_offloaded_at_stages_that_can():
    check_deepspeed(run_with(OFFLOADED), 1)
    with refuses("offload_optimizer works at stages 2 and 3, but engine.zero_stage is 1"):
        check_deepspeed(run_with(OFFLOADED, zero_stage=1), 1)
