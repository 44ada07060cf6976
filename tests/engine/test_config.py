"""Numbers of a run: learning rate, cost, split of a batch, precision."""

import pytest
import torch
from synthetic import run_config

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.ranks import world
from ds_minimodel.engine.run import deepspeed_config, fill_batch, split_batch
from ds_minimodel.ops.precision import resolve_precision


def test_learning_rate_rises_and_falls_linearly():
    run = run_config(steps=10, warmup_steps=4, lr=8e-4)
    assert [run.lr_at(step) for step in range(4)] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4])
    assert [run.lr_at(step) for step in (4, 7, 9, 10)] == pytest.approx([8e-4, 4e-4, 8e-4 / 6, 0])


def test_learning_rate_of_the_paper():
    run = run_config(steps=125_000, warmup_steps=10_000, lr=7e-4)
    assert run.lr_at(0) == pytest.approx(7e-8)
    assert run.lr_at(9_999) == pytest.approx(7e-4)
    assert run.lr_at(67_500) == pytest.approx(3.5e-4)


@pytest.mark.parametrize("warmup_steps, first", [(0, 1.0), (6, 1 / 6), (12, 1 / 12)])
def test_learning_rate_without_warmup_or_without_decay(warmup_steps, first):
    run = run_config(steps=6, warmup_steps=warmup_steps, lr=1.0)
    rates = [run.lr_at(step) for step in range(6)]
    assert rates[0] == pytest.approx(first)
    assert all(0 < rate <= 1 for rate in rates)


def test_cost_over_phases():
    run = run_config(steps=10, phases=((4, 1.0, 2.0), (6, 10.0, 20.0)))
    costs = [run.flops_until(step) for step in (0, 3, 4, 5, 10)]
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


@pytest.mark.parametrize("has_bf16, expected", [(True, "bf16"), (False, "fp32")])
def test_precision_of_a_cpu(monkeypatch, has_bf16, expected):
    cpu = torch.device("cpu")
    monkeypatch.setattr(world, "has_bf16_products", lambda: has_bf16)
    assert resolve_precision("auto", cpu) == expected
    assert resolve_precision("bf16", cpu) == "bf16"
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        resolve_precision("fp16", cpu)


@pytest.mark.parametrize(
    "batch_size, micro, world_size, slots",
    [(32, 32, 1, 32), (32, 8, 4, 32), (32, 32, 5, 35), (32, 32, 64, 64), (32, 5, 1, 35), (8, 3, 2, 8), (7, 4, 2, 8)],
)
def test_a_filled_batch_divides(batch_size, micro, world_size, slots):
    found, micro_batch = fill_batch(batch_size, micro, world_size)
    assert found == slots and micro_batch <= micro
    size, accumulation = split_batch(found, micro_batch, world_size)
    assert size == micro_batch and size * accumulation * world_size == slots
