"""Reading a recipe: the YAML file, overrides of the command line, the base that it starts from, and then the schema."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ds_minimodel.bodies import BODIES
from ds_minimodel.common.errors import UserError
from ds_minimodel.objectives import OBJECTIVES
from ds_minimodel.recipe.base import Base, read_base
from ds_minimodel.recipe.schema import Recipe, recipe_class
from ds_minimodel.recipe.yaml12 import MOST_BYTES, apply_override, problem_of, read_yaml, refusal

_PIPES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")  # a shell's <(…), which has a writer


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe at `path` and apply `key=value` overrides (`adapt.lr=1e-3`).

    path: a YAML file, or the name of a recipe that comes with the package (`paper`) where no file has it.
    Paths inside a recipe are relative to the current folder. Raises UserError for anything wrong.
    """
    return recipe_of_text(_text_of(path), path, overrides)


def recipe_of_text(text: str, path: str | Path, overrides: Sequence[str] = (), base: Base | None = None) -> Recipe:
    """The recipe in `text`, which messages call `path`; else as load_recipe.

    base: facts of the recipe's base, where its folder is not one yet.
    """
    try:
        values, tree = read_yaml(text)
    except yaml.YAMLError as error:
        mark, at = getattr(error, "problem_mark", None), getattr(error, "position", 0)
        line = mark.line if mark else text.count("\n", 0, at)
        raise UserError(f"{path}:{line + 1}: not valid YAML ({problem_of(error)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a recipe is a mapping of keys to values; see `ds-minimodel recipes quickstart`")
    for override in overrides:
        apply_override(values, override)
    if base is None and isinstance(values.get("base"), str):
        base = read_base(values["base"])
    schema = _class_of(values, base)
    try:
        return schema.model_validate(values, context={"base": base, "name": " ".join([str(path), *overrides])})
    except ValidationError as error:
        raise UserError(refusal(path, tree, error, schema, overrides)) from None


def package_recipes() -> dict[str, str]:
    """{name: text} of the recipes that come with the package."""
    folder = Path(__file__).parents[1] / "recipes"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}


def _class_of(values: dict[str, Any], base: Base | None) -> type[Recipe]:
    """The class of a recipe, by the names in it; where one is none that there is, a class that refuses it."""
    model = values.get("model")
    name = model.get("kind") if isinstance(model, dict) else None
    kind = BODIES.get(base.config.kind if base else str(name), BODIES["roberta"])
    objective = OBJECTIVES.get(base.objective if base else str(values.get("objective")), OBJECTIVES[kind.objective])
    return recipe_class(kind, objective)


def _text_of(path: str | Path) -> str:
    if not os.path.isfile(path) and str(path) in (of_package := package_recipes()):
        return of_package[str(path)]
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not str(path).startswith(_PIPES):
            raise UserError(f"{path}: a folder, a pipe or a device; name the recipe's YAML file")
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; `ds-minimodel recipes` lists those that come with it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot read the recipe ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES:,} bytes; that is no recipe")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x}); convert the file") from None
