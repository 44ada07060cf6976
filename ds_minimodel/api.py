"""The names for programs of others, gathered from the rooms that hold them. docs/api.md shows them in use."""

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.store import TokenStore
from ds_minimodel.models.artifacts import BodyArtifact, PackArtifact, load_body, load_pack
from ds_minimodel.recipe.flops import recipe_costs
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.serve.embedder import Embedder
from ds_minimodel.serve.packs import plugged_module
from ds_minimodel.serve.predictor import Predictor
from ds_minimodel.steps.run import run_recipe

__all__ = [
    "BodyArtifact",
    "Embedder",
    "PackArtifact",
    "Predictor",
    "Recipe",
    "TokenStore",
    "UserError",
    "load_body",
    "load_pack",
    "load_recipe",
    "plugged_module",
    "recipe_costs",
    "run_recipe",
]
