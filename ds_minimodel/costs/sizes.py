"""What memory decides of an adaptation: its micro-batch, recomputation and ZeRO stage, by the
forecast of plans.py.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from ds_minimodel.config.schema import Recipe
from ds_minimodel.costs.memory import Device, device_named
from ds_minimodel.costs.plans import Planner, model_of, planner_of, setup_of
from ds_minimodel.ops.gpu import device
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.training.run import replicas_of, split_batch

# Tokens of a micro-batch: fewer than the first take layers' recomputation rather, more than the
# second bring nothing.
AT_ONCE = {"cpu": (1024, 1024), "cuda": (4096, 32_768)}
SHARE = 0.9  # of a device, which has its libraries' buffers to hold, too


class Fit(NamedTuple):
    """Keys of a recipe's section engine, and why they are so."""

    zero_stage: int
    micro_batch_size: int
    recompute_layers: bool
    reason: str

    @property
    def engine(self) -> dict[str, Any]:
        """The keys."""
        return {key: value for key, value in self._asdict().items() if key != "reason"}


def device_here() -> Device:
    """This machine's GPU, or its CPUs."""
    if (gpu := device()).type == "cpu":
        return device_named("cpu")
    memory = torch.cuda.get_device_properties(gpu).total_memory
    precisions = dict.fromkeys((resolve_precision("auto", gpu), "bf16", "fp16", "fp32"))
    return Device(torch.cuda.get_device_name(gpu), "cuda", memory, tuple(precisions))


def fit(recipe: Recipe, ranks: int, device: Device) -> Fit:
    """How step 2 of a recipe's first system is computed on so many ranks, whose number divides
    adapt.batch_size.

    Frozen weights are shared (ZeRO 3) where one device does not hold them; layers are recomputed
    where too few tokens fit otherwise; then the micro-batch is the largest that fits. The recipe's
    own engine.micro_batch_size and so on don't count.
    """
    system, section = recipe.chosen_systems[0], recipe.adapt
    fewest, most = (max(1, tokens // section.seq_length) for tokens in AT_ONCE[device.type])
    per_rank = split_batch(
        section.batch_size, 1, replicas_of(ranks, recipe.engine.tensor_parallel)
    ).accumulation
    sizes = [size for size in range(1, per_rank + 1) if per_rank % size == 0 and size <= most]
    device, planners = device._replace(memory=int(SHARE * device.memory)), dict[bool, Planner]()
    setup = setup_of(recipe, section, ranks, device)
    for again in (False, True):
        engine = recipe.engine.model_copy(update={"recompute_layers": again})
        with torch.device("meta"):
            module = model_of(recipe.model_copy(update={"engine": engine}), system, "adapt")
        planners[again] = planner_of(recipe, section, module, device)

    def largest(stage: int, again: bool) -> int:
        """The largest micro-batch that fits, 0 for none."""
        own = setup._replace(zero_stage=stage)
        fits = (
            size
            for size in reversed(sizes)
            if planners[again].plan(own._replace(micro_batch_size=size)).fits
        )
        return next(fits, 0)

    wanted = min(fewest, sizes[-1])
    # Stage 0 asks each tensor by itself whether it is finite: 4,500 operators of LoRA's 241, which
    # a GPU waits for.
    least = int(device.type == "cuda")
    for stage, again in itertools.product([least, 3][: 1 + (ranks > 1)], (False, True)):
        size = largest(stage, again)
        if size >= (1 if again else wanted):
            how = [
                "layers keep their activations",
                "layers are recomputed, as these would not fit",
            ][again]
            how += ", frozen weights are shared by the ranks" if stage == 3 else ""
            return Fit(stage, size, again, f"{how} (by the forecast for {device.name})")
    return Fit(
        stage,
        1,
        True,
        f"which need more memory than {device.name} has by the forecast, and are tried",
    )
