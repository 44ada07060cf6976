"""What each masked-LM step of a recipe takes on a given number of ranks; nothing is started.

Finetuning takes less than the pretraining of the same body at the same micro-batch.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ds_minimodel.engine.execution import replicas_of
from ds_minimodel.engine.planning import devices
from ds_minimodel.engine.planning.memory_and_traffic import Sizes
from ds_minimodel.engine.planning.planner import Planner, ranks_for_copy
from ds_minimodel.model.artifacts import BodyArtifact
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.model.transformer import Body
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.parallel import Group
from ds_minimodel.recipe.schema import MaskedLm, Recipe
from ds_minimodel.steps.adapt import adapted_model, is_scheduled
from ds_minimodel.steps.build_mini import mini_model
from ds_minimodel.steps.pretrain import pretrained_model
from ds_minimodel.steps.training import body_config
from ds_minimodel.systems import System

Batch = dict[str, Any]


def plans(recipe: Recipe, world_size: int, device_name: str, ranks_per_node: int | None = None) -> list[dict[str, Any]]:
    """Rows as JSON, one for each step of each system of the recipe.

    ranks_per_node: all ranks, up to 8, where not given. UserError for an unknown device and for ranks that do
    not divide a batch, or that engine.tensor_parallel does not divide.
    """
    ranks_per_node = ranks_per_node or min(8, world_size)
    device = devices.named(device_name, ranks_per_node)
    engine = recipe.engine
    precision = (
        resolve_precision(engine.precision, torch.device("cpu"))
        if device_name == "cpu"
        else device.precision
        if engine.precision == "auto"
        else engine.precision
    )
    planners: dict[Any, Planner] = {}  # steps of the same architecture, in which the same trains, have the same plan
    rows = []
    for step in _steps(recipe):
        key = step.name, step.module.body.config
        if key not in planners:
            planners[key] = _planner(recipe, step, precision, device.type)
        sizes = Sizes(
            engine.zero_stage,
            precision,
            step.section.batch_size,
            engine.micro_batch_size,
            replicas_of(world_size, engine.tensor_parallel),
            ranks_for_copy(ranks_per_node, engine.tensor_parallel),
            device.memory,
        )
        plan = planners[key].plan(sizes)
        rows.append(
            {
                "system": step.system.name,
                "step": step.name,
                "device": device.name,
                **sizes._asdict(),
                "world_size": world_size,
                "ranks_per_node": ranks_per_node,
                "tensor_parallel": engine.tensor_parallel,
                "micro_batch_size": sizes.micro,
                **plan.summary(),
                "smallest_zero_stage": planners[key].smallest_stage(sizes),
                "largest_micro_batch": planners[key].largest_micro_batch(sizes),
                "parts": [asdict(part) for part in plan.parts],
            }
        )
    return rows


@dataclass(frozen=True)
class _Step:
    """A training step of a system. module: without memory. depth: the one head that is trained through, or None."""

    system: System
    name: str
    section: MaskedLm
    module: MaskedLanguageModel
    depth: int | None = None


def _steps(recipe: Recipe) -> list[_Step]:
    found = []
    with torch.device("meta"):
        for system in recipe.chosen_systems:
            config = body_config(recipe, system)
            body = BodyArtifact(config, Body(config).state_dict(), space="")
            if recipe.base is None:
                found.append(_Step(system, "pretrain", recipe.pretrain, pretrained_model(recipe, system)))
            if system.builds_mini:
                body, module = mini_model(recipe, body)
                found.append(_Step(system, "build-mini", recipe.build_mini, module))
            _, module = adapted_model(recipe, body, system, recipe.tokenizer.vocab_size)
            deepest = recipe.adapt.depth_schedule[-1][0] if is_scheduled(recipe, system) else None
            found.append(_Step(system, "adapt", recipe.adapt, module, deepest))
    return found


def _planner(recipe: Recipe, step: _Step, precision: str, device: str) -> Planner:
    """For the rank of a replica that holds the largest parts: the last."""
    tensor_parallel = recipe.engine.tensor_parallel
    with torch.device("meta"):
        shard(step.module, Group(tensor_parallel - 1, tensor_parallel))
        return Planner(step.module, _batches(recipe, step), precision, device)


def _batches(recipe: Recipe, step: _Step) -> Callable[[int], list[Batch]]:
    """A function of the micro-batch: one micro-batch, without memory, of the form that costs most."""

    def batches(micro: int) -> list[Batch]:
        section = step.section
        read = micro, int(section.mask_prob * section.seq_length) + 1  # the most that a row may have masked
        batch: Batch = {
            "tokens": _integers((micro, section.seq_length)),
            "sample_keys": _integers((micro,), torch.int32),
            "read": _integers(read),
            "targets": _integers(read),
        }
        if recipe.data.blocks != "complete":
            batch["lengths"] = _integers((micro,), torch.int32)
        if step.depth is not None:
            batch["depth"] = step.depth
        return [batch]

    return batches


def _integers(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")
