"""The partition of a run: what stays whole at ZeRO 3, buckets, and what a run keeps of it."""

import pytest
import torch
from synthetic import losses, model, run_config, same, train

from ds_minimodel.pipeline.memory import held_between_steps
from ds_minimodel.training.partition import Setup, partition_of
from ds_minimodel.training.zero.config import ZeroMemory, deepspeed_config
from tests.helpers.files import read_json

pytestmark = pytest.mark.slow

GIB = 2**30


def partition(what="adapt", **changes):
    usual = dict(
        zero_stage=3,
        precision="bf16",
        batch_size=64,
        micro_batch_size=8,
        ranks=8,
        device_memory=GIB,
    )
    return partition_of(model(what), Setup(**usual | changes))


def frozen(what):
    return [
        name for name, parameter in model(what).named_parameters() if not parameter.requires_grad
    ]


def test_at_stage_3_frozen_parameters_stay_whole_as_long_as_half_of_the_memory_is_left():
    """In the module's order; what trains never is."""
    names = frozen("adapt")
    assert partition().whole == set(names)
    assert not partition().splits_linear
    needed = sum(held_between_steps(partition()))
    assert partition(device_memory=2 * needed).whole == set(names)
    for memory in (2 * needed - 2, needed):
        found = partition(device_memory=memory)
        assert found.whole == set(names[: len(found.whole)])
        assert 0 < len(found.whole) < len(names)
        assert sum(held_between_steps(found)) <= memory // 2
    nothing_whole = partition(device_memory=1)
    assert nothing_whole.whole == set()
    assert nothing_whole.splits_linear
    assert partition("pretrain").whole == set()


def test_buckets_are_no_larger_than_what_trains():
    """DeepSpeed's own are 500 million elements, whatever trains."""
    found = partition(zero_stage=1)
    trained = sum(
        parameter.numel() for parameter in model("adapt").parameters() if parameter.requires_grad
    )
    config = deepspeed_config(run_config(zero_stage=1), 1, found.zero)
    assert config["zero_optimization"] == {
        "stage": 1,
        "reduce_bucket_size": trained,
        "allgather_bucket_size": trained,
    }
    assert partition(zero=ZeroMemory(bucket=5000)).zero["reduce_bucket_size"] == 5000


@pytest.mark.parametrize("stage", [0, 3])
def test_a_run_keeps_its_partition(world, tmp_path, stage):
    train(world, tmp_path, run_config(zero_stage=stage, steps=1), model("adapt"))
    kept = read_json(tmp_path / "run.json")["partition"]
    found = partition(zero_stage=stage, precision="fp32", batch_size=8, ranks=1)
    assert kept == found.record()
    assert kept["frozen"] == kept["frozen_whole"] == len(frozen("adapt"))


def test_results_do_not_depend_on_the_partition(world, tmp_path, monkeypatch):
    """With all frozen parameters whole and with none, as the memory of the machine allows."""
    run = run_config(zero_stage=3, precision="bf16")
    weights = []
    whole = []
    for memory in (GIB, 1):
        monkeypatch.setattr(
            "ds_minimodel.training.partition.machine_memory", lambda memory=memory: memory
        )
        weights.append(train(world, tmp_path / str(memory), run, model("adapt")))
        whole.append(read_json(tmp_path / str(memory) / "run.json")["partition"]["frozen_whole"])
    assert whole == [len(frozen("adapt")), 0]
    assert same(*weights)
    assert losses(tmp_path / str(GIB)) == losses(tmp_path / "1")


@pytest.mark.parametrize(
    "given, taken",
    [
        ({"zero_stage": 0}, True),
        ({"zero_stage": 2}, False),
        ({"zero_stage": 3}, True),
        ({"zero_stage": 2, "precision": "fp32"}, True),
        ({"zero_stage": 2, "clip": 1.0}, True),
        ({"zero_stage": 2, "micro_batch_size": 2}, False),
    ],
)
def test_gradient_norms_are_left_out_where_nobody_reads_them_and_deepspeed_can(given, taken):
    config = deepspeed_config(run_config(**{"precision": "bf16", **given}), 1)
    assert config["zero_optimization"].get("compute_grad_norm", True) == taken


@pytest.mark.parametrize("stage", range(4))
def test_checkpoints_hold_only_what_trains(world, tmp_path, stage):
    """Of the frozen body there is neither a weight nor the state of an optimizer."""

    run = run_config(zero_stage=stage, precision="bf16", checkpoint_every=1, steps=3)
    train(world, tmp_path, run, model("adapt"))
    found = set()
    for path in (tmp_path / "checkpoints").glob("step-00000002/*model_states.pt"):
        state = torch.load(path, weights_only=False)
        assert not state.get("frozen_param_fragments")
        assert not state.get("frozen_param_shapes")
        found |= set(state["module"] or ()) | {
            name for shapes in state["param_shapes"] or () for name in shapes
        }
    assert found == {"pack.tokens", "pack.bias"}
