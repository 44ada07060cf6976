"""Kinds of modules from any nn.Module, activations, and what the plan chooses."""

import copy

import pytest
import torch
from measure import measure_step, saved_bytes
from synthetic import BATCH_SIZE, Sampler, model, run_config, train
from torch import nn

from ds_minimodel.engine.planning.memory_and_traffic import IN_NODE, Sizes, ring
from ds_minimodel.engine.planning.planner import Planner
from ds_minimodel.engine.planning.trace import PASS_THROUGH, PREFIX, TRAINABLE, on_meta, trace
from ds_minimodel.engine.zero.config import deepspeed_config
from ds_minimodel.model.heads import to_tensors
from ds_minimodel.model.parameters import train_only
from ds_minimodel.steps.training import micro_batches

GIB = 2**30


def batch(size=BATCH_SIZE):
    return to_tensors(Sampler.rows(0, size))


def kinds(module, batch):
    found = trace(on_meta(module, torch.float32), batch, True, "cpu").kinds
    return {kind: {name for name in found if found[name] == kind} for kind in (PREFIX, PASS_THROUGH, TRAINABLE)}


def names_below(module, *starts):
    return {name for name, _ in module.named_parameters() if name.startswith(starts)}


def test_pretraining_trains_everything():
    module = model("pretrain")
    assert kinds(module, batch())[TRAINABLE] == names_below(module, "")


def test_step_1b_has_a_prefix_below_its_new_layers():
    """The head above them passes gradients through, and so does the output projection, which is the embedding."""
    module = model("build-mini")
    found = kinds(module, batch())
    unread = names_below(module, "body.heads.1.") & found[PREFIX]  # a head at depth 1 sees nothing that trains
    assert found[PREFIX] - unread == names_below(module, "body.positions", "body.embedding_norm", "body.layers.0.")
    assert found[PASS_THROUGH] == names_below(module, "body.heads.3.", "pack.") | (
        names_below(module, "body.heads.1.") - unread
    )
    assert found[TRAINABLE] == names_below(module, "body.layers.1.", "body.layers.2.")


def test_step_2_passes_through_its_body():
    module = model("adapt")
    found = kinds(module, batch())
    assert found[TRAINABLE] == {"pack.tokens", "pack.bias"} and found[PREFIX] == set()
    assert found[PASS_THROUGH] == names_below(module, "body.")


def test_frozen_embeddings_below_all_that_trains_are_a_prefix():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    train_only(module, lambda name: name.startswith("1."))

    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, batch):
            return self.module(batch["tokens"]).sum()[None]

    found = kinds(Summed(), {"tokens": torch.arange(6).reshape(2, 3)})
    assert found == {
        PREFIX: {"module.0.weight"},
        TRAINABLE: {"module.1.weight", "module.1.bias"},
        PASS_THROUGH: {"module.3.weight", "module.3.bias"},
    }


@pytest.mark.parametrize("what", ["pretrain", "adapt", "build-mini"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_those_that_autograd_keeps(what, dtype):
    module = model(what).to(dtype)
    assert trace(on_meta(module, dtype), batch(), True, "cpu").activations == pytest.approx(
        saved_bytes(copy.deepcopy(module), batch()), rel=0.01
    )


def test_a_prefix_keeps_nothing():
    """All that autograd keeps of step 1b comes after the prefix: as much as without the layers of the prefix."""
    module = model("build-mini")
    del module.body.heads["1"]
    module.body.config = module.body.config.__class__(**{**vars(module.body.config), "head_depths": (3,)})
    kept = saved_bytes(module, batch())
    prefix = module.body.layers[0]
    extra = copy.deepcopy(prefix)
    module.body.layers.insert(0, extra)
    module.body.heads["4"] = module.body.heads.pop("3")
    module.body.config = module.body.config.__class__(
        **{**vars(module.body.config), "num_layers": 4, "head_depths": (4,)}
    )
    assert saved_bytes(module, batch()) == kept


def sizes(**changes):
    return Sizes(
        **{
            "zero_stage": 1,
            "precision": "bf16",
            "batch_size": 64,
            "micro_batch_size": 8,
            "world_size": 8,
            "ranks_per_node": 8,
            "device_memory": GIB,
        }
        | changes
    )


def planner(what="adapt"):
    return Planner(model(what), lambda micro: [batch(micro)], "bf16", "cpu")


def test_buckets_are_no_larger_than_what_trains():
    """DeepSpeed's own are 500 million elements, whatever trains."""
    plan = planner().plan(sizes())
    trained = sum(parameter.numel() for parameter in model("adapt").parameters() if parameter.requires_grad)
    config = deepspeed_config(run_config(zero_stage=1), 1, plan.zero)
    assert config["zero_optimization"] == {"stage": 1, "reduce_bucket_size": trained, "allgather_bucket_size": trained}


@pytest.mark.parametrize(
    "given, taken",
    [
        ({"zero_stage": 0}, True),
        ({"zero_stage": 1}, False),
        ({"zero_stage": 2}, False),
        ({"zero_stage": 3}, True),
        ({"zero_stage": 2, "precision": "fp16"}, False),
        ({"zero_stage": 2, "precision": "fp32"}, True),
        ({"zero_stage": 2, "clip": 1.0}, True),
        ({"zero_stage": 1, "micro_batch_size": 2}, True),
        ({"zero_stage": 2, "micro_batch_size": 2}, False),
    ],
)
def test_gradient_norms_are_left_out_where_nobody_reads_them_and_deepspeed_can(given, taken):
    config = deepspeed_config(run_config(**{"precision": "bf16", **given}), 1)
    assert config["zero_optimization"].get("compute_grad_norm", True) == taken


def test_one_rank_at_stage_0_copies_no_gradients(world):
    """In a step whose gradients outweigh its activations, so that a copy of them would be the fullest moment."""
    run = run_config(batch_size=1, micro_batch_size=1)
    costs = measure_step(model("pretrain"), micro_batches(Sampler, run, world), run, world)
    measured, planned = costs["measured"]["total"], costs["planned"]["total"]
    assert measured <= 1.03 * planned and planned <= 1.15 * measured


def test_stage_3_keeps_frozen_modules_whole():
    plan = planner().plan(sizes(zero_stage=3))
    placements = {part.name: part.placement for part in plan.parts}
    assert placements.pop("pack") == "partitioned" and set(placements.values()) == {"replicated"}
    assert plan.fits and not planner().plan(sizes(zero_stage=3, device_memory=1)).fits


def test_on_several_nodes_later_micro_batches_gather_from_their_own():
    plan = planner("pretrain").plan(sizes(zero_stage=3, world_size=4, ranks_per_node=2))
    assert plan.zero["zero_hpz_partition_size"] == 2 and plan.wire[IN_NODE] > 0
    assert {part.placement for part in plan.parts} == {"partitioned, copy in node"}
    alone = planner("pretrain").plan(sizes(zero_stage=3, world_size=4, ranks_per_node=4))
    assert plan.wire["all-gather"] < alone.wire["all-gather"] and "zero_hpz_partition_size" not in alone.zero


def test_what_fits_is_found():
    found, at = planner("pretrain"), sizes(zero_stage=0)
    needs = found.plan(at).memory.total
    fits_whole, fits_less = at._replace(device_memory=needs), at._replace(device_memory=needs - 1)
    assert found.smallest_stage(fits_whole) == 0 and found.smallest_stage(fits_less) > 0
    assert found.largest_micro_batch(fits_whole) == 8 and found.largest_micro_batch(fits_less) in (1, 2, 4)
    assert found.largest_micro_batch(at._replace(device_memory=1)) is None
    assert found.smallest_stage(at._replace(device_memory=1)) is None


@pytest.mark.parametrize("collective, sent", [("all-reduce", 150), ("all-gather", 75), ("reduce-scatter", 75)])
def test_cost_of_a_ring(collective, sent):
    assert ring(100, 4, collective) == sent and ring(100, 1, collective) == 0


@pytest.mark.parametrize("stage", range(4))
def test_checkpoints_hold_only_what_trains(world, tmp_path, stage):
    """Of the frozen body there is neither a weight nor the state of an optimizer."""
    run = run_config(zero_stage=stage, precision="bf16", checkpoint_every=1, steps=3, phases=((3, 1.0, 1.0),))
    train(world, tmp_path, run, model("adapt"))
    found = set()
    for path in (tmp_path / "checkpoints").glob("step-00000002/*model_states.pt"):
        state = torch.load(path, weights_only=False)
        assert not state.get("frozen_param_fragments") and not state.get("frozen_param_shapes")
        found |= set(state["module"] or ()) | {name for shapes in state["param_shapes"] or () for name in shapes}
    assert found == {"pack.tokens", "pack.bias"}
