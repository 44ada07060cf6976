"""A step whose gradients are not finite changes nothing, at any stage and in any precision."""

import math

import pytest
import torch
from synthetic import TRAINS, Sampler, model, run_config, same

from benchmarks.operators import Called
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.training.loop import optimizer_step
from ds_minimodel.training.zero import engine as zero_engine
from ds_minimodel.training.zero.state import fragments, read_masters

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "stage, precision", [(0, "bf16"), (1, "bf16"), (2, "bf16"), (0, "fp32"), (1, "fp32")]
)
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_gradients_that_are_not_finite_change_nothing(world, stage, precision, value):
    run = run_config(zero_stage=stage, precision=precision)
    batch = to_tensors(Sampler.batch(0, 8))
    engine = zero_engine.build_engine(model(), run, world)
    optimizer_step(engine, [batch], 1, run, world, 1)
    before = read_masters(engine), [part.tensors["exp_avg"].clone() for part in fragments(engine)]
    spoil = engine.module.pack.bias.register_hook(lambda gradient: torch.full_like(gradient, value))
    optimizer_step(engine, [batch], 1, run, world, 1)
    assert engine.skipped_steps == 1
    assert same(read_masters(engine), before[0])
    assert all(
        part.tensors["exp_avg"].equal(old)
        for part, old in zip(fragments(engine), before[1], strict=True)
    )
    spoil.remove()
    optimizer_step(engine, [batch], 1, run, world, 1)
    assert engine.skipped_steps == 1
    assert not same(read_masters(engine), before[0])
    zero_engine.destroy(engine)


def test_one_rank_copies_no_gradients_at_stage_1(world):
    run = run_config(zero_stage=1, precision="bf16")
    batch = to_tensors(Sampler.batch(0, 8))
    engine = zero_engine.build_engine(model(), run, world)
    with Called() as called:
        optimizer_step(engine, [batch], 1, run, world, 1)
    assert called.counts["copy_"] < 5 < len([*engine.module.parameters()])
    zero_engine.destroy(engine)


@pytest.mark.parametrize("stage, precision", [(1, "fp32"), (1, "bf16"), (2, "bf16"), (3, "bf16")])
def test_the_norm_of_all_gradients_is_taken_at_once(world, stage, precision):
    run = run_config(zero_stage=stage, precision=precision, clip=0.1)
    batch = to_tensors(Sampler.batch(0, 8))
    engine = zero_engine.build_engine(model(), run, world)
    wrapped = engine.optimizer
    taken = []
    norm = engine.optimizer.get_grad_norm_direct

    def watched(gradients, parameters):
        with Called() as called:
            taken.append(norm(gradients, parameters))
        assert called.counts.total() < 15 < len(gradients)
        taken.append(type(wrapped).get_grad_norm_direct(wrapped, gradients, parameters))
        return taken[0]

    wrapped.get_grad_norm_direct = watched
    optimizer_step(engine, [batch], 1, run, world, 1)
    ours, deepspeeds = taken
    assert ours.item() == pytest.approx(deepspeeds.item(), rel=1e-7)
    assert ours > run.optimizer.clip
    assert zero_engine.gradient_norm(engine, run, world) == pytest.approx(ours.item(), rel=1e-6)
    zero_engine.destroy(engine)


@pytest.mark.parametrize(
    "trains, stage, precision",
    [
        *((trains, 3, "bf16") for trains in TRAINS),
        ("pretrain", 0, "fp32"),
        ("adapt", 1, "bf16"),
        ("build-mini", 2, "bf16"),
    ],
)
def test_layers_that_are_computed_again_give_the_same_bits(world, stage, precision, trains):
    """With dropout; at stage 3 over frozen weights that are partitioned, too."""
    results = []
    for recomputes in (False, True):
        run = run_config(zero_stage=stage, precision=precision)
        module = model(trains)
        module.body.config = module.body.config.model_copy(
            update={"dropout": 0.1, "attention_dropout": 0.1}
        )
        calls = []
        for layer in module.body.layers:
            layer.recomputes = recomputes
        module.body.layers[1].register_forward_pre_hook(lambda *_, calls=calls: calls.append(None))
        engine = zero_engine.build_engine(module, run, world)
        batches = [to_tensors(Sampler.batch(first, first + 8)) for first in (0, 8)]
        losses = [optimizer_step(engine, [batch], 1, run, world, 1)[0] for batch in batches]
        results.append((losses, read_masters(engine)))
        assert len(calls) == 2 * (1 + recomputes)
        zero_engine.destroy(engine)
    (losses, weights), (others, other_weights) = results
    assert all(map(torch.equal, losses, others))
    assert same(weights, other_weights)
