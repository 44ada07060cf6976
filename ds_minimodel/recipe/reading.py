"""Reading a recipe: the YAML file, overrides of the command line, the base that it starts from, and then the schema."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from ds_minimodel.common.errors import UserError
from ds_minimodel.recipe.base import read_base
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.recipe.yaml12 import Yaml12, apply_override, refusal


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe at `path` and apply `key=value` overrides (`adapt.lr=1e-3`).

    Paths inside a recipe are relative to the current folder. Raises UserError for anything wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        values, tree = yaml.load(text, Yaml12), yaml.compose(text, Yaml12)
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; those that come with the sources lie in recipes/") from None
    except IsADirectoryError:
        raise UserError(f"{path}: a folder; name the recipe's YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the recipe ({error})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(
            f"{path}:{mark.line + 1 if mark else 1}: not valid YAML ({getattr(error, 'problem', error)})"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values; see recipes/quickstart.yaml")
    for override in overrides:
        apply_override(values, override)
    base = read_base(values["base"]) if isinstance(values.get("base"), str) else None
    try:
        return Recipe.model_validate(values, context={"base": base})
    except ValidationError as error:
        raise UserError(refusal(path, tree, error, Recipe, overrides)) from None
