"""The steps of a recipe that train on text: their models with fresh weights, and the form of their batches."""

from typing import Any

import torch

from ds_minimodel.models import make_body
from ds_minimodel.models.artifacts import BodyArtifact
from ds_minimodel.models.trainable import LanguageModel
from ds_minimodel.recipe.schema import Recipe, Training
from ds_minimodel.recipe.systems import System
from ds_minimodel.steps.adapt import adapt_depths, adapted_model, is_scheduled
from ds_minimodel.steps.build_mini import mini_model
from ds_minimodel.steps.pretrain import pretrained_model
from ds_minimodel.steps.training import body_of

TEXT_STEPS = ("pretrain", "build-mini", "adapt")


def text_steps(recipe: Recipe, system: System) -> dict[str, Training]:
    """{step: its section of the recipe}, of what a system trains on text."""
    steps: dict[str, Training] = {} if recipe.base else {"pretrain": recipe.pretrain}
    return steps | ({"build-mini": recipe.build_mini} if system.builds_mini else {}) | {"adapt": recipe.adapt}


def phases_of(recipe: Recipe, system: System, step: str) -> list[tuple[int | None, float]]:
    """(the one head that is trained through, None for all; its share of the step's updates), the deepest last."""
    if step == "adapt" and is_scheduled(recipe, system):
        return list(adapt_depths(recipe, system))
    return [(None, 1.0)]


def model_of(recipe: Recipe, system: System, step: str) -> LanguageModel:
    """The whole model of a step, with fresh weights on torch's default device, frozen as the step freezes it."""
    if step == "pretrain":
        return pretrained_model(recipe, system)
    config, depths = body_of(recipe, system)
    body = BodyArtifact(config, depths, make_body(config, depths).state_dict(), space="")
    if system.builds_mini:
        body, module = mini_model(recipe, body)
        if step == "build-mini":
            return module
    return adapted_model(recipe, body, system, recipe.tokenizer.vocab_size)[1]


def largest_batch(recipe: Recipe, section: Training, depth: int | None, micro: int) -> dict[str, Any]:
    """A micro-batch of this size on the meta device, of the form that costs most."""
    shapes = recipe.trained_by.shapes(section, section.seq_length)
    batch: dict[str, Any] = {name: _integers((micro, *shape)) for name, shape in shapes.items()}
    batch["sample_keys"] = _integers((micro,), torch.int32)
    if recipe.data.blocks != "complete":
        batch["lengths"] = _integers((micro,), torch.int32)
    if depth is not None:
        batch["depth"] = depth
    return batch


def _integers(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="meta")
