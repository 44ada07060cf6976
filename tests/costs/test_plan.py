"""Memory and traffic of a step before it is started: activations, and what fits."""

import copy

import pytest
import torch
from ranks import saved_bytes
from synthetic import BATCH_SIZE, Sampler, model

from ds_minimodel.costs.memory import device_named
from ds_minimodel.costs.plans import Planner
from ds_minimodel.costs.tracing import on_meta, trace
from ds_minimodel.models.trainable import to_tensors
from ds_minimodel.training.partition import Setup

SETUP = Setup(1, "bf16", 64, 8, 8, 2**30)


def batch(size=BATCH_SIZE):
    return to_tensors(Sampler.batch(0, size))


def planner(what="adapt"):
    return Planner(model(what), batch, "bf16", device_named("cpu"))


@pytest.mark.parametrize("what", ["pretrain", "adapt", "build-mini"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_those_that_autograd_keeps(what, dtype):
    module = model(what).to(dtype)
    assert trace(on_meta(module, dtype), batch(), True, "cpu").activations == pytest.approx(
        saved_bytes(copy.deepcopy(module), batch()), rel=0.01
    )


def test_what_fits_is_found():
    found, at = planner("pretrain"), SETUP._replace(zero_stage=0)
    needs = found.plan(at).memory.total
    fits_whole, fits_less = at._replace(device_memory=needs), at._replace(device_memory=needs - 1)
    assert found.smallest_stage(fits_whole) == 0 and found.smallest_stage(fits_less) > 0
    assert found.largest_micro_batch(fits_whole) == 8 and found.largest_micro_batch(fits_less) in (
        1,
        2,
        4,
    )
    assert found.largest_micro_batch(at._replace(device_memory=1)) is None
    assert found.smallest_stage(at._replace(device_memory=1)) is None
