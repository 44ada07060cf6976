"""The public names, gathered from the packages that define them.

docs/api.md shows them in use.
"""

import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.artifacts.adaptation import load_adaptation, whole
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, load_body, load_model
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.retired import retired
from ds_minimodel.config.flops import recipe_costs
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.config.schema import Recipe
from ds_minimodel.data.store import TokenStore
from ds_minimodel.evaluation.bits import bits_per_byte
from ds_minimodel.evaluation.packs import plugged_module, save_plugged
from ds_minimodel.extend.config import ExtendConfig, read_config
from ds_minimodel.pipeline.run import run_recipe
from ds_minimodel.pipeline.status import look

if TYPE_CHECKING:
    from ds_minimodel.export.folder import export_adapter, export_hf
    from ds_minimodel.extend.compare import compare_models

# {name: module} of functions that need the extra `hf`.
_WITH_TRANSFORMERS = {
    "compare_models": "extend.compare",
    "export_adapter": "export.folder",
    "export_hf": "export.folder",
}

__all__ = [
    "Adaptation",
    "BodyArtifact",
    "Recipe",
    "TokenStore",
    "UserError",
    "bits_per_byte",
    "compare_models",
    "export_adapter",
    "export_hf",
    "extend",
    "load_adaptation",
    "load_body",
    "load_model",
    "load_recipe",
    "look",
    "plugged_module",
    "recipe_costs",
    "run_recipe",
    "save_plugged",
    "whole",
]


def extend(**options: Any) -> Path:
    """Add a language to a model; return the folder that `from_pretrained` reads, OUT/model.

    Args:
        **options: Fields of ExtendConfig, which are the options of the command line.

    Raises:
        UserError: An option is wrong, or something stops a step of the recipe.
    """
    # It needs the extra `hf`.
    from ds_minimodel.extend import run

    return run.extend(read_config(options))


# The options as arguments, for help() and editors.
extend.__signature__ = inspect.signature(ExtendConfig)  # type: ignore[attr-defined]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if said := retired(f"{__name__}.{name}"):
        raise ImportError(f"{__name__}.{name} {said}")
    if name not in _WITH_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"ds_minimodel.{_WITH_TRANSFORMERS[name]}"), name)
