"""Numbers of a run: learning rate, cost, split of a batch, DeepSpeed's JSON, run.json."""

import pytest
from synthetic import RUN, run_config

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import fill_batch, split_batch
from ds_minimodel.engine.zero.config import deepspeed_config


def test_learning_rate_rises_and_falls_linearly():
    run = run_config(steps=10, warmup_steps=4, lr=8e-4)
    assert [run.schedule.lr_at(step) for step in range(4)] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4])
    assert [run.schedule.lr_at(step) for step in (4, 7, 9, 10)] == pytest.approx([8e-4, 4e-4, 8e-4 / 6, 0])


def test_learning_rate_of_the_paper():
    run = run_config(steps=125_000, warmup_steps=10_000, lr=7e-4)
    assert run.schedule.lr_at(0) == pytest.approx(7e-8)
    assert run.schedule.lr_at(9_999) == pytest.approx(7e-4)
    assert run.schedule.lr_at(67_500) == pytest.approx(3.5e-4)


@pytest.mark.parametrize("warmup_steps, first", [(0, 1.0), (6, 1 / 6), (12, 1 / 12)])
def test_learning_rate_without_warmup_or_without_decay(warmup_steps, first):
    run = run_config(steps=6, warmup_steps=warmup_steps, lr=1.0)
    rates = [run.schedule.lr_at(step) for step in range(6)]
    assert rates[0] == pytest.approx(first)
    assert all(0 < rate <= 1 for rate in rates)


def test_cost_over_phases():
    run = run_config(steps=10, phases=((4, 1.0, 2.0), (6, 10.0, 20.0)))
    costs = [run.accounting.flops_until(step) for step in (0, 3, 4, 5, 10)]
    assert costs == [(0, 0), (3, 6), (4, 8), (14, 28), (64, 128)]


@pytest.mark.parametrize(
    "batch_size, micro, world_size, split",
    [(2048, 32, 8, (32, 8)), (16, 16, 1, (16, 1)), (16, 64, 2, (8, 1)), (6, 1, 3, (1, 2))],
)
def test_split_of_a_batch(batch_size, micro, world_size, split):
    assert split_batch(batch_size, micro, world_size) == split
    config = deepspeed_config(run_config(batch_size=batch_size, micro_batch_size=micro), world_size)
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == split


@pytest.mark.parametrize(
    "batch_size, micro, world_size, key", [(15, 8, 2, "batch_size 15"), (16, 3, 2, "micro_batch_size 3")]
)
def test_a_batch_that_does_not_divide_is_refused(batch_size, micro, world_size, key):
    with pytest.raises(UserError, match=key):
        split_batch(batch_size, micro, world_size)


@pytest.mark.parametrize("stage, micro, expected", [(0, 8, None), (0, 2, None), (1, 8, None), (1, 2, "fp32")])
def test_bf16_accumulates_in_fp32_where_deepspeed_can(stage, micro, expected):
    config = deepspeed_config(run_config(zero_stage=stage, precision="bf16", micro_batch_size=micro), 1)
    assert config.get("data_types", {}).get("grad_accum_dtype") == expected


@pytest.mark.parametrize(
    "batch_size, micro, world_size, slots",
    [(32, 32, 1, 32), (32, 8, 4, 32), (32, 32, 5, 35), (32, 32, 64, 64), (32, 5, 1, 35), (8, 3, 2, 8), (7, 4, 2, 8)],
)
def test_a_filled_batch_divides(batch_size, micro, world_size, slots):
    found, micro_batch = fill_batch(batch_size, micro, world_size)
    assert found == slots and micro_batch <= micro
    size, accumulation = split_batch(found, micro_batch, world_size)
    assert size == micro_batch and size * accumulation * world_size == slots


def test_the_record_of_a_run_has_the_names_that_run_json_has_always_had():
    record = run_config(zero_stage=2, precision="bf16", checkpoint_every=7, keep_every=14).record()
    assert list(record) == list(RUN)
    assert record == {**RUN, "zero_stage": 2, "precision": "bf16", "checkpoint_every": 7, "keep_every": 14}


def test_a_precision_that_is_not_resolved_is_no_execution():
    with pytest.raises(AssertionError, match="'auto' is not resolved"):
        run_config(precision="auto")
