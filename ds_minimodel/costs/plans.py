"""Memory, traffic and FLOPs of each step of a recipe that trains on text, on so many ranks; nothing
is started.

Finetuning takes less memory than the pretraining of the same body at the same micro-batch, and is
not planned.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from ds_minimodel.artifacts.base import config_of
from ds_minimodel.artifacts.models import BodyArtifact
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import SYSTEMS, System
from ds_minimodel.costs.memory import (
    PROCESS,
    Device,
    Memory,
    device_named,
    memory_of_step,
    traffic_of_step,
)
from ds_minimodel.costs.tracing import Trace, on_meta, trace
from ds_minimodel.models.body import BASE_ROWS, INIT_STD
from ds_minimodel.models.tensor_parallel import split_model
from ds_minimodel.models.trainable import LanguageModel
from ds_minimodel.ops.parallel import Group
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.pipeline.steps.adapt import AdaptConfig, adapted_model
from ds_minimodel.pipeline.steps.build_mini import BuildMiniConfig, mini_model
from ds_minimodel.pipeline.steps.pretrain import PretrainConfig, pretrained_model
from ds_minimodel.pipeline.training import text_steps
from ds_minimodel.training.config import Training
from ds_minimodel.training.partition import Partition, Setup, partition_of
from ds_minimodel.training.run import Execution, replicas_of
from ds_minimodel.training.zero.config import needed_stage, zero_memory

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What a step holds and sends with a partition. traffic: {collective: bytes that each rank
    sends a step}.
    """

    partition: Partition
    memory: Memory
    traffic: dict[str, int]

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.partition.setup.device_memory

    def record(self) -> Row:
        """The plan as JSON."""
        return {
            "fits": self.fits,
            "memory": asdict(self.memory),
            "traffic": {**self.traffic, "total": sum(self.traffic.values())},
            "partition": self.partition.record(),
        }


class Planner:
    """Makes plans for a module on a device.

    module: with `requires_grad` as it trains, on any device; it is traced as a copy without memory.
    batch_of: one micro-batch of a size; only shapes and types count. process, reading: bytes of
    host memory of a rank's process, and beside the weights while these are read.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        batch_of: Callable[[int], dict[str, Any]],
        precision: str,
        device: Device,
        process: int = 0,
        reading: int = 0,
    ):
        self.module, self.batch_of, self.device = (
            on_meta(module, DTYPES[precision]),
            batch_of,
            device,
        )
        self.process, self.reading = process, reading
        self._traces: dict[tuple[int, bool], Trace] = {}

    def plan(self, setup: Setup) -> Plan:
        """The plan of a step, with the partition that a run of this setup has."""
        partition, traced = partition_of(self.module, setup), self.trace(setup)
        memory = memory_of_step(partition, traced.activations, traced.peak)
        if self.device.type == "cpu":  # all is in the same memory
            fullest = max(memory.total, memory.weights + self.reading)
            memory = replace(memory, total=fullest + memory.host + self.process)
        else:
            memory = replace(memory, host=memory.host + self.process + self.reading)
        return Plan(partition, memory, traffic_of_step(partition))

    def smallest_stage(self, setup: Setup) -> int | None:
        """The lowest ZeRO stage at which `setup` fits, or None."""
        return next(
            (stage for stage in range(4) if self.plan(setup._replace(zero_stage=stage)).fits), None
        )

    def largest_micro_batch(self, setup: Setup) -> int | None:
        """The largest micro-batch that divides a rank's samples and fits, or None."""
        per_rank = setup.batch_size // setup.replicas
        divisors = [micro for micro in range(1, per_rank + 1) if per_rank % micro == 0]
        fitting = bisect_left(  # memory grows with the size
            divisors,
            True,
            key=lambda micro: not self.plan(setup._replace(micro_batch_size=micro)).fits,
        )
        return divisors[fitting - 1] if fitting else None

    def trace(self, setup: Setup) -> Trace:
        """One micro-batch of the setup, traced."""
        leaves = setup.zero_stage > 0 or setup.split.accumulation > 1
        key = setup.split.micro, leaves
        if key not in self._traces:
            batch = self.batch_of(setup.split.micro)
            self._traces[key] = trace(self.module, batch, leaves, self.device.type)
        return self._traces[key]


def plans(recipe: Recipe, ranks: int, device_name: str, peak: float | None = None) -> list[Row]:
    """Rows as JSON, one for each step on text of each system of the recipe.

    device_name: of `device_named`. peak: TFLOP/s of one device; at it the executed FLOPs take
    "least_hours", which is None without it. UserError for ranks that do not divide a batch, or that
    engine.tensor_parallel does not divide.
    """
    device, engine = device_named(device_name), recipe.engine
    check_deepspeed_file(recipe, replicas_of(ranks, engine.tensor_parallel))
    planners: dict[Any, Planner] = {}  # of steps of the same architecture, in which the same trains
    rows = []
    for cost in recipe_costs(recipe):
        system, step = SYSTEMS[cost["system"]], cost["step"]
        section = text_steps(recipe, [system])[step]
        setup = setup_of(recipe, section, ranks, device)
        with torch.device("meta"):
            module = model_of(recipe, system, step)
        key = step, system.trains, module.body.config, module.body.head_depths
        if key not in planners:
            planners[key] = planner_of(recipe, section, module, device)
        planner = planners[key]
        plan = planner.plan(setup)
        rows.append(
            {
                **cost,
                "least_hours": None
                if peak is None
                else cost["executed_eflops"] * 1e6 / (peak * ranks * 3600),
                "peak": peak,
                "steps": section.steps,
                "seq_length": section.seq_length,
                "device": device.name,
                **{key: value for key, value in setup._asdict().items() if key != "zero"},
                "micro_batch_size": setup.split.micro,
                **plan.record(),
                "smallest_zero_stage": planner.smallest_stage(setup),
                "largest_micro_batch": planner.largest_micro_batch(setup),
            }
        )
    return rows


def setup_of(recipe: Recipe, section: Training, ranks: int, device: Device) -> Setup:
    """The Setup of a step with this section of the recipe."""
    engine, replicas = recipe.engine, replicas_of(ranks, recipe.engine.tensor_parallel)
    precision, settings = device.resolve(engine.precision), engine.deepspeed.settings
    execution = Execution(section.batch_size, engine.micro_batch_size, engine.zero_stage, precision)
    parallel, memory, zero = (
        engine.tensor_parallel,
        device.memory_of_rank(ranks),
        zero_memory(settings),
    )
    stage = needed_stage(
        execution, replicas, parallel, recipe.optimizer.clip, settings, device.type
    )
    sizes = asdict(replace(execution, zero_stage=stage))
    return Setup(**sizes, ranks=ranks, device_memory=memory, tensor_parallel=parallel, zero=zero)


def planner_of(recipe: Recipe, section: Training, module: LanguageModel, device: Device) -> Planner:
    """The Planner of a step with this section, whose whole model on the meta device is cut for a
    rank here.
    """
    engine, parts = recipe.engine, recipe.engine.tensor_parallel
    split_model(module, Group(parts - 1, parts))  # the last rank's part is the largest
    stored = (config_of(recipe.base).theirs.dtype if recipe.base else None) or torch.float32
    batch_of, precision = partial(largest_batch, recipe, section), device.resolve(engine.precision)
    return Planner(module, batch_of, precision, device, PROCESS, reading_bytes(module, stored))


# --- the steps on text: their models with fresh weights, and the form of their batches


def model_of(recipe: Recipe, system: System, step: str) -> LanguageModel:
    """The whole model of a step, with fresh weights on torch's default device, frozen as the step
    freezes it.
    """
    if step == "pretrain":
        return pretrained_model(PretrainConfig.of_body(recipe, system), recipe.source_vocab_size)
    config, depths = recipe.body_of(system)
    body = BodyArtifact(config, depths, config.make_body(depths).state_dict(), space="")
    if system.builds_mini:
        body, module = mini_model(BuildMiniConfig.of_recipe(recipe), body, recipe.source_vocab_size)
        if step == "build-mini":
            return module
    config_of_step = AdaptConfig.of_system(recipe, system, recipe.languages.targets[0])
    sizes, device = (recipe.target_vocab_size, recipe.num_base), torch.get_default_device()
    _, module = adapted_model(config_of_step, body, *sizes, torch.float32, device)
    for parameter in module.pack.parameters():
        torch.nn.init.normal_(parameter, 0, INIT_STD)
    return module


def reading_bytes(module: LanguageModel, stored: torch.dtype) -> int:
    """Bytes of host memory that the main rank takes beside a model's weights while it reads these
    and makes new rows.

    The largest tensor, twice, or all embeddings, and three times the new rows in fp32. stored: type
    on disk.
    """
    largest = max(parameter.numel() for parameter in module.parameters())
    sizes = {name: parameter.numel() for name, parameter in module.pack.named_parameters()}
    kept = sum(size for name, size in sizes.items() if name.startswith(BASE_ROWS))
    return max(
        2 * stored.itemsize * largest, stored.itemsize * kept + 12 * (sum(sizes.values()) - kept)
    )


def largest_batch(recipe: Recipe, section: Training, micro: int) -> dict[str, Any]:
    """A micro-batch of this size on the meta device, of the form that costs most."""
    shapes = recipe.trained_by.shapes(section, section.seq_length)
    batch: dict[str, Any] = {name: _integers((micro, *shape)) for name, shape in shapes.items()}
    batch["sample_keys"] = _integers((micro,), torch.int32)
    if (recipe.data.blocks or recipe.trained_by.blocks) != "complete":
        batch["lengths"] = _integers((micro,), torch.int32)
    return batch


def _integers(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")
