"""Forecasts of memory, traffic and FLOPs of each step of a recipe that trains on text.

They also give the engine's settings with which an adaptation fits a device.

Finetuning takes less memory than the pretraining of the same body at the same micro-batch, and is
not planned.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch

from ds_minimodel.artifacts.models import BodyArtifact
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import SYSTEMS, System
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import Model
from ds_minimodel.ops.parallel import Group
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.pipeline.memory import Device, Load, Memory, device_named, memory_of_step
from ds_minimodel.pipeline.steps.adapt import AdaptConfig, adapted_model
from ds_minimodel.pipeline.steps.build_mini import BuildMiniConfig, mini_model
from ds_minimodel.pipeline.steps.pretrain import PretrainConfig, pretrained_model
from ds_minimodel.pipeline.training import text_steps
from ds_minimodel.training.config import Training
from ds_minimodel.training.partition import Partition, Setup, partition_of
from ds_minimodel.training.run import Execution, replicas_of, split_batch
from ds_minimodel.training.zero.config import BUCKET, needed_stage, zero_memory

Row = dict[str, Any]


@dataclass(frozen=True)
class Planner:
    """Plans of one step on one device.

    Attributes:
        module: The part of the step's model that a rank holds, on the meta device, with
            `requires_grad` as it trains.
        load: What a micro-batch computes.
        device: Where.
    """

    module: Model
    load: Load
    device: Device

    def partition(self, setup: Setup) -> Partition:
        """Return the partition that a run of this setup has."""
        return partition_of(self.module, setup)

    def memory(self, setup: Setup) -> Memory:
        """Return the memory of a step of this setup."""
        return memory_of_step(self.partition(setup), self.load, self.device)

    def fits(self, setup: Setup) -> bool:
        """Return whether a step of this setup fits its device."""
        return self.memory(setup).total <= setup.device_memory

    def smallest_stage(self, setup: Setup) -> int | None:
        """Return the lowest ZeRO stage at which `setup` fits, or None."""
        for stage in range(4):
            if self.fits(setup._replace(zero_stage=stage)):
                return stage
        return None

    def largest_micro_batch(self, setup: Setup, max_size: int | None = None) -> int | None:
        """Return the largest micro-batch that divides a rank's samples and fits, or None.

        Args:
            setup: The run, whatever its micro-batch is.
            max_size: Most samples that it may have; all of a rank's by default.
        """
        per_rank = setup.batch_size // setup.replicas
        for size in range(min(per_rank, max_size or per_rank), 0, -1):
            if per_rank % size == 0 and self.fits(setup._replace(micro_batch_size=size)):
                return size
        return None


def plans(recipe: Recipe, ranks: int, device_name: str, peak: float | None = None) -> list[Row]:
    """Return rows as JSON, one for each step on text of each system of the recipe.

    Args:
        recipe: What is planned.
        ranks: In all.
        device_name: A name of `device_named`.
        peak: TFLOP/s of one device; the executed FLOPs then take "least_hours" at least, which is
            None without it.

    Raises:
        UserError: Ranks do not divide a batch, or engine.tensor_parallel does not divide them.
    """
    device = device_named(device_name)
    check_deepspeed_file(recipe, replicas_of(ranks, recipe.engine.tensor_parallel))
    rows = []
    for cost in recipe_costs(recipe):
        system = SYSTEMS[cost["system"]]
        section = text_steps(recipe, [system])[cost["step"]]
        setup = setup_of(recipe, section, ranks, device)
        planner = planner_of(recipe, system, cost["step"], device)
        partition = planner.partition(setup)
        traffic = traffic_of_step(partition)
        least_hours = None
        if peak is not None:
            least_hours = cost["executed_eflops"] * 1e6 / (peak * ranks * 3600)
        sizes = setup._asdict()
        del sizes["zero"]
        row = {
            **cost,
            **sizes,
            "least_hours": least_hours,
            "peak": peak,
            "steps": section.steps,
            "seq_length": section.seq_length,
            "device": device.name,
            "micro_batch_size": setup.split.micro,
            "fits": planner.fits(setup),
            "memory": planner.memory(setup)._asdict(),
            "traffic": {**traffic, "total": sum(traffic.values())},
            "partition": partition.record(),
            "smallest_zero_stage": planner.smallest_stage(setup),
            "largest_micro_batch": planner.largest_micro_batch(setup),
        }
        rows.append(row)
    return rows


def setup_of(recipe: Recipe, section: Training, ranks: int, device: Device) -> Setup:
    """Return the Setup of a step with this section of the recipe."""
    engine = recipe.engine
    settings = engine.deepspeed.settings
    execution = Execution(
        batch_size=section.batch_size,
        micro_batch_size=engine.micro_batch_size,
        zero_stage=engine.zero_stage,
        precision=device.resolve(engine.precision),
    )
    stage = needed_stage(
        execution,
        replicas=replicas_of(ranks, engine.tensor_parallel),
        tensor_parallel=engine.tensor_parallel,
        clip=recipe.optimizer.clip,
        settings=settings,
        device_type=device.type,
    )
    return Setup(
        **asdict(replace(execution, zero_stage=stage)),
        ranks=ranks,
        device_memory=device.memory_of_rank(ranks),
        tensor_parallel=engine.tensor_parallel,
        zero=zero_memory(settings),
    )


def planner_of(recipe: Recipe, system: System, step: str, device: Device) -> Planner:
    """Return the Planner of a system's step on text."""
    section = text_steps(recipe, [system])[step]
    with torch.device("meta"):
        module = model_of(recipe, system, step)
    config = module.body.config
    heads = len(module.body.head_depths)
    parts = recipe.engine.tensor_parallel
    # The last rank's part is the largest.
    split_model(module, Group(parts - 1, parts))
    trains_body = any(
        parameter.requires_grad
        for name, parameter in module.body.named_parameters()
        if name.startswith("layers.")
    )
    share_read = heads * recipe.trained_by.share_read(section)
    load = Load(
        config=config,
        tokens=section.seq_length,
        vocab_size=recipe.target_vocab_size if step == "adapt" else recipe.source_vocab_size,
        share_read=share_read if recipe.trained_by.predicts_tokens else 0.0,
        trains_body=trains_body,
        recomputes=recipe.engine.recompute_layers,
    )
    return Planner(module, load, device)


def model_of(recipe: Recipe, system: System, step: str) -> Model:
    """Return the whole model of a step, frozen as the step freezes it.

    Its weights are fresh and lie on torch's default device.
    """
    if step == "pretrain":
        return pretrained_model(PretrainConfig.of_body(recipe, system), recipe.source_vocab_size)
    config, depths = recipe.body_of(system)
    body = BodyArtifact(config, depths, config.make_body(depths).state_dict(), space="")
    if system.builds_mini:
        body, module = mini_model(BuildMiniConfig.of_recipe(recipe), body, recipe.source_vocab_size)
        if step == "build-mini":
            return module
    _, module = adapted_model(
        AdaptConfig.of_system(recipe, system, recipe.languages.targets[0]),
        body,
        vocab_size=recipe.target_vocab_size,
        num_base=recipe.num_base,
        dtype=torch.float32,
        device=torch.get_default_device(),
    )
    for parameter in module.pack.parameters():
        torch.nn.init.normal_(parameter, 0, INIT_STD)
    return module


def traffic_of_step(partition: Partition) -> dict[str, int]:
    """Return {collective: bytes that each rank sends in one step}.

    By the ring algorithm over W replicas: all-reduce of n bytes sends 2 n (W-1)/W, all-gather and
    reduce-scatter n (W-1)/W.
    """
    setup = partition.setup
    ranks = setup.replicas
    times = setup.split.accumulation
    trained = sum(partition.trained)
    if setup.zero_stage < 3:
        # Stage 2 keeps only its share of the gradients, so it reduces each micro-batch's.
        reductions = times if setup.zero_stage == 2 else 1
        sent = {"all-reduce": reductions * ring(setup.width * trained, ranks, "all-reduce")}
        if setup.zero_stage:
            gathered = setup.width * ranks * setup.share(trained)
            sent["all-gather"] = ring(gathered, ranks, "all-gather")
        return sent
    gathered = setup.width * ranks * sum(map(setup.share, partition.partitioned))
    reduced = setup.width * ranks * sum(map(setup.share, partition.trained))
    # So few stay gathered for the backward pass.
    passes = 1 if sum(partition.partitioned) <= BUCKET else 2
    return {
        "all-gather": ring(times * passes * gathered, ranks, "all-gather"),
        "reduce-scatter": ring(times * reduced, ranks, "reduce-scatter"),
    }


def ring(size: int, ranks: int, collective: str) -> int:
    """Return the bytes that each of `ranks` ranks sends in a ring collective over `size` bytes."""
    return (2 if collective == "all-reduce" else 1) * size * (ranks - 1) // ranks


# --- how an adaptation fits

# Fewest and most tokens of a micro-batch. Rather than with fewer, layers are recomputed; more bring
# nothing.
TOKENS_AT_ONCE = {"cpu": (1024, 1024), "cuda": (4096, 32_768)}
SHARE_OF_DEVICE = 0.9  # its libraries' buffers take the rest


class Fit(NamedTuple):
    """Keys of a recipe's section `engine`, and the reason of their values."""

    zero_stage: int
    micro_batch_size: int
    recompute_layers: bool
    reason: str

    @property
    def engine(self) -> dict[str, Any]:
        """The keys without their reason."""
        keys = self._asdict()
        del keys["reason"]
        return keys


def fit(recipe: Recipe, ranks: int, device: Device) -> Fit:
    """Return how step 2 of a recipe's first system is computed on so many ranks.

    Layers are recomputed where too few tokens fit otherwise. Frozen weights are shared (ZeRO 3)
    where one device does not hold them. The recipe's engine.micro_batch_size, zero_stage and
    recompute_layers do not count.

    Args:
        recipe: With sizes of `adapt`, whose batch the number of ranks divides.
        ranks: In all.
        device: On which each runs.
    """
    section = recipe.adapt
    min_tokens, max_tokens = TOKENS_AT_ONCE[device.type]
    min_size = max(1, min_tokens // section.seq_length)
    max_size = max(1, max_tokens // section.seq_length)
    replicas = replicas_of(ranks, recipe.engine.tensor_parallel)
    per_rank = split_batch(section.batch_size, 1, replicas).accumulation
    wanted = max(size for size in range(1, min_size + 1) if per_rank % size == 0)
    device = device._replace(memory=int(SHARE_OF_DEVICE * device.memory))
    setup = setup_of(recipe, section, ranks, device)
    planner = planner_of(recipe, recipe.chosen_systems[0], "adapt", device)
    # Stage 0 asks each tensor by itself whether it is finite: 4,500 operators for the 241 tensors
    # of a LoRA update, and a GPU waits for each.
    lowest = 1 if device.type == "cuda" else 0
    stages = [lowest]
    if ranks > 1:
        stages.append(3)
    for stage in stages:
        for recomputes in (False, True):
            planner = replace(planner, load=planner.load._replace(recomputes=recomputes))
            size = planner.largest_micro_batch(setup._replace(zero_stage=stage), max_size)
            if size is not None and (recomputes or size >= wanted):
                reason = "layers keep their activations"
                if recomputes:
                    reason = "layers are recomputed, as these would not fit"
                if stage == 3:
                    reason += ", frozen weights are shared by the ranks"
                reason += f" (by the forecast for {device.name})"
                return Fit(stage, size, recomputes, reason)
    return Fit(
        zero_stage=stages[-1],
        micro_batch_size=1,
        recompute_layers=True,
        reason=f"which need more memory than {device.name} has by the forecast, and are tried",
    )
