"""A small model on made-up batches, trained by the engine: for the tests and the ranks that they
start.
"""

import os
from types import SimpleNamespace
from unittest import mock

import deepspeed
import numpy as np
import pytest
import torch

from ds_minimodel.common.files import read_json_lines
from ds_minimodel.models.trainable import train_only
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.training import micro_batches
from ds_minimodel.training import loop
from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Schedule
from ds_minimodel.training.run import Accounting, Execution, Run
from tests.small_models import masked_lm, roberta

STEPS = 6
BATCH_SIZE = 8
SEQ_LENGTH = 16
VOCAB_SIZE = 64
BODY = roberta(3, 32, 2, 64, SEQ_LENGTH)
DEPTHS = (1, 3)
# What trains in step 1, in step 2 and in step 1b.
TRAINS = {
    "pretrain": lambda name: True,
    "adapt": lambda name: name.startswith("pack."),
    "build-mini": lambda name: name.startswith(("body.layers.1.", "body.layers.2.")),
}


class Sampler:
    """Samples that are functions of their number, with unequal counts of loss terms."""

    @staticmethod
    def batch(first, last):
        samples = []
        for index in range(first, last):
            random = np.random.default_rng(index)
            num_targets = 1 + index % 5
            targets = np.full(5, -100)
            targets[:num_targets] = random.integers(4, VOCAB_SIZE, num_targets)
            samples.append(
                {
                    "tokens": random.integers(4, VOCAB_SIZE, SEQ_LENGTH),
                    "lengths": SEQ_LENGTH,
                    "loss_positions": random.permutation(SEQ_LENGTH)[:5],
                    "targets": targets,
                    "sample_keys": index * 7919,
                }
            )
        batch = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
        batch |= {name: batch[name].astype(np.int32) for name in ("lengths", "sample_keys")}
        return batch | {"count": int((batch["targets"] >= 0).sum())}


RUN: dict = dict(
    steps=STEPS,
    batch_size=BATCH_SIZE,
    lr=1e-2,
    warmup_steps=2,
    decay_steps=0,
    weight_decay=0.01,
    betas=(0.9, 0.98),
    eps=1e-6,
    clip=0.0,
    zero_stage=0,
    precision="fp32",
    micro_batch_size=BATCH_SIZE,
    checkpoint_every=1000,
    keep_last=2,
    tokens_per_step=BATCH_SIZE * SEQ_LENGTH,
    formula_flops=1e9,
    executed_flops=2e9,
)


def run_config(deepspeed=None, **changes):
    """A Run, by the names that run.json has for its numbers; deepspeed: settings of a file."""
    assert changes.keys() <= RUN.keys(), changes.keys() - RUN.keys()
    values = RUN | changes

    def part(kind, names):
        return kind(**{name: values[name] for name in names})

    return Run(
        schedule=part(Schedule, ("steps", "lr", "warmup_steps", "decay_steps")),
        execution=part(Execution, ("batch_size", "micro_batch_size", "zero_stage", "precision")),
        accounting=part(Accounting, ("tokens_per_step", "formula_flops", "executed_flops")),
        optimizer=part(AdamWConfig, AdamWConfig.model_fields),
        checkpoints=CheckpointPolicy(
            every=values["checkpoint_every"], keep_last=values["keep_last"]
        ),
        deepspeed=deepspeed or {},
    )


def changed(run, **changes):
    """A Run like another but for these numbers."""
    return run_config(**{**run.record(), **changes})


def model(what="pretrain", seed=0):
    torch.manual_seed(seed)
    module = masked_lm(BODY, VOCAB_SIZE, *DEPTHS)
    train_only(module, TRAINS[what])
    return module


def weights_of(module):
    """Of parameters, and of the buffers that frozen ones become at ZeRO 3."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach().clone() for name, tensor in tensors}


def train(  # noqa: PLR0913, keys of a run
    world,
    folder,
    run,
    module=None,
    snapshot_steps=(),
    on_snapshot=lambda *_: None,
    sampler=Sampler,
    job="test",
):
    """loop.train on the batches of `sampler`."""
    return loop.train(
        module or model(),
        micro_batches(sampler, run, world),
        run,
        world,
        loop.RunIdentity(folder, label="test", job=job),
        loop.Snapshots(snapshot_steps, on_snapshot),
    )


def losses(folder):
    return [record["loss"] for record in read_json_lines(folder / "metrics.jsonl")]


def same(weights, others):
    """Whether two {name: tensor} are equal bit for bit."""
    return weights.keys() == others.keys() and all(
        torch.equal(weights[key], others[key]) for key in weights
    )


def observe(world, folder, run, what):
    """Train; what a test wants to know of it, as JSON: losses, and the engine's state after the
    last step.
    """
    module = model(what)
    seen = SimpleNamespace()
    original = weights_of(module)
    build_engine = loop.build_engine

    def keep_engine(*arguments):
        seen.engine = build_engine(*arguments)
        return seen.engine

    def look(step, weights):
        seen.weights = weights
        seen.state_size = sum(world.all_gather_object(lambda: _state_size(seen.engine.optimizer)))
        with deepspeed.zero.GatheredParameters(list(module.parameters())):
            seen.parameters = weights_of(module)

    with mock.patch.object(loop, "build_engine", keep_engine):
        weights = train(world, folder, run, module, (run.schedule.steps,), look)
    frozen = original.keys() - weights.keys()
    dtype = DTYPES[run.execution.precision]
    records = list(read_json_lines(folder / "metrics.jsonl"))
    return {
        "losses": [record["loss"] for record in records],
        "gradient_norms": [record.get("gradient_norm") for record in records],
        "trained": sorted(weights),
        "unmoved": sorted(name for name in weights if torch.equal(weights[name], original[name])),
        "frozen_moved": sorted(
            name
            for name in frozen
            if not torch.equal(seen.parameters[name], original[name].to(dtype))
        ),
        "trained_size": sum(weight.numel() for weight in weights.values()),
        "state_size": seen.state_size,
        "dtypes": sorted({str(weight.dtype) for weight in weights.values()}),
        "rounded": all(
            torch.equal(weight, weight.to(torch.bfloat16).float()) for weight in weights.values()
        ),
        "masters_round_to_parameters": same(
            {name: weights[name].to(dtype) for name in weights},
            {name: seen.parameters[name] for name in weights},
        ),
        "snapshot_is_result": same(seen.weights, weights),
    }


def _state_size(optimizer):
    """Elements of Adam's first moment on this rank."""
    torch_optimizer = getattr(optimizer, "optimizer", optimizer)
    return sum(state["exp_avg"].numel() for state in torch_optimizer.state.values())


class CrashingSampler(Sampler):
    """Fails when the fifth step asks for its batch."""

    @staticmethod
    def batch(first, last):
        if first >= 4 * BATCH_SIZE:
            raise RuntimeError("crash of the test")
        return Sampler.batch(first, last)


def crash(world, folder, run, what="pretrain"):
    """Train four steps and fail."""
    with pytest.raises(RuntimeError, match="crash of the test"):
        train(world, folder, run, model(what), sampler=CrashingSampler)


def signal_self(*numbers):
    """An on_snapshot that sends this process signals."""

    def send(_step, _weights):
        for number in numbers:
            os.kill(os.getpid(), number)

    return send


def other_start(what):
    """A model with other initial weights, so that what a checkpoint failed to restore would be
    seen.

    Frozen weights are the same as before: a step reads them from artifacts.
    """
    module = model(what, seed=1)
    first = model(what)
    kept = {
        name: parameter
        for name, parameter in first.named_parameters()
        if not parameter.requires_grad
    }
    module.load_state_dict(kept, strict=False)
    return module


def resume(world, folder, run, what="pretrain"):
    """Go on with a run that has been stopped."""
    return train(world, folder, run, other_start(what))
