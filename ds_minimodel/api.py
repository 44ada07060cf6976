"""The names for programs of others, gathered from the rooms that hold them. docs/api.md shows them in use."""

import importlib
from typing import TYPE_CHECKING, Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.store import TokenStore
from ds_minimodel.models.artifacts import BodyArtifact, PackArtifact, load_body, load_pack
from ds_minimodel.recipe.flops import recipe_costs
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.serve.bits import bits_per_byte
from ds_minimodel.serve.packs import join_packs, plugged_module, save_plugged
from ds_minimodel.steps.run import run_recipe
from ds_minimodel.steps.status import look

if TYPE_CHECKING:
    from ds_minimodel.extend import extend
    from ds_minimodel.hf.convert import export_hf, import_model
    from ds_minimodel.hf.rehearsal import rehearse

_WITH_TRANSFORMERS = {  # the extra `hf`
    "extend": "extend",
    "import_model": "hf.convert",
    "export_hf": "hf.convert",
    "rehearse": "hf.rehearsal",
}

__all__ = [
    "BodyArtifact",
    "PackArtifact",
    "Recipe",
    "TokenStore",
    "UserError",
    "bits_per_byte",
    "export_hf",
    "extend",
    "import_model",
    "join_packs",
    "load_body",
    "load_pack",
    "load_recipe",
    "look",
    "plugged_module",
    "recipe_costs",
    "rehearse",
    "run_recipe",
    "save_plugged",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"ds_minimodel.{_WITH_TRANSFORMERS[name]}"), name)
