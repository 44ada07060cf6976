"""The training steps of a recipe on the meta device, without memory."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from ds_minimodel.bodies import make_body
from ds_minimodel.bodies.body import shard
from ds_minimodel.model.artifacts import BodyArtifact
from ds_minimodel.model.models import LanguageModel
from ds_minimodel.parallel import Group
from ds_minimodel.recipe.schema import Recipe, Training
from ds_minimodel.steps.adapt import adapt_depths, adapted_model, is_scheduled
from ds_minimodel.steps.build_mini import mini_model
from ds_minimodel.steps.pretrain import pretrained_model
from ds_minimodel.steps.training import body_of

Batch = dict[str, Any]


@dataclass(frozen=True)
class PlannedStep:
    """A training step of a system.

    section: of the recipe. module: on the meta device, frozen as the step freezes it; of a replica that is split, the
    last rank's part, which is the largest. depth: the one head trained through, None for all. phases: (such a depth,
    share of the steps) where the depth changes; the last is the deepest.
    """

    system: str
    name: str
    section: Training
    module: LanguageModel
    depth: int | None = None
    phases: tuple[tuple[int | None, float], ...] = ((None, 1.0),)


def planned_steps(recipe: Recipe) -> list[PlannedStep]:
    """Each step of each system of a recipe that trains on text."""
    found = []
    with torch.device("meta"):
        for system in recipe.chosen_systems:
            config, depths = body_of(recipe, system)
            body = BodyArtifact(config, depths, make_body(config, depths).state_dict(), space="")
            if recipe.base is None:
                found.append(PlannedStep(system.name, "pretrain", recipe.pretrain, pretrained_model(recipe, system)))
            if system.builds_mini:
                body, module = mini_model(recipe, body)
                found.append(PlannedStep(system.name, "build-mini", recipe.build_mini, module))
            _, module = adapted_model(recipe, body, system, recipe.tokenizer.vocab_size)
            step = PlannedStep(system.name, "adapt", recipe.adapt, module)
            if is_scheduled(recipe, system):
                phases = tuple(adapt_depths(recipe, system))
                step = replace(step, depth=phases[-1][0], phases=phases)
            found.append(step)
        size = recipe.engine.tensor_parallel
        for step in found:
            shard(step.module, Group(size - 1, size))
    return found


def planned_batch(recipe: Recipe, step: PlannedStep, micro: int) -> Batch:
    """A micro-batch of this size on the meta device, of the form that costs most."""
    section = step.section
    shapes = recipe.trained_by.shapes(section, section.seq_length)
    batch: Batch = {name: _integers((micro, *shape)) for name, shape in shapes.items()}
    batch["sample_keys"] = _integers((micro,), torch.int32)
    if recipe.data.blocks != "complete":
        batch["lengths"] = _integers((micro,), torch.int32)
    if step.depth is not None:
        batch["depth"] = step.depth
    return batch


def _integers(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")
