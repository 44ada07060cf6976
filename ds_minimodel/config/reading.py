"""Reading a recipe: the YAML file, overrides of the command line, its base, then the schema.

What is wrong is said in one line: the override, or file and line; the key; what is wrong with it.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from ds_minimodel.common.errors import UserError, reason_of
from ds_minimodel.common.retired import retired
from ds_minimodel.config.base import read_base
from ds_minimodel.config.schema import Recipe, recipe_class
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models import BODIES

# Bytes of a file. YAML's aliases make much of little; those of so many bytes take seconds.
MAX_BYTES = 1 << 17


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. Paths inside it are relative to the current folder.

    Args:
        path: a YAML file, or the name of a recipe that comes with the package (`paper`) where no
            file has it.
        overrides: each `key=value`, for example `adapt.lr=1e-3`.

    Raises:
        UserError: anything is wrong with the file, an override or the base.
    """
    try:
        values, tree = read_yaml(_text_of(path))
    except _YamlError as error:
        raise UserError(f"{path}:{error.line}: not valid YAML ({error})") from None
    return recipe_of_values(values, path, overrides, tree)


def recipe_of_values(
    values: Any, path: str | Path, overrides: Sequence[str] = (), tree: Node | None = None
) -> Recipe:
    """Return the recipe that a mapping of keys to values is.

    Args:
        values: the mapping, which overrides change.
        path: where it is from, for messages.
        overrides: as of load_recipe.
        tree: the composed document, as of read_yaml, for line numbers.

    Raises:
        UserError: as of load_recipe.
    """
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: a recipe is a mapping of keys to values; see `ds-minimodel recipes "
            "quickstart`"
        )
    for override in overrides:
        _apply_override(values, override)
    base = None
    if isinstance(values.get("base"), str):
        pooling = values.get("pooling")
        base = read_base(values["base"], pooling if isinstance(pooling, str) else None)
    model = values.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    trained_with = ""
    if base is not None:
        kind = base.config.kind
        trained_with = base.config.trained_with
    # The schema of any kind refuses a kind that there is not.
    schema = recipe_class(BODIES.get(str(kind), BODIES["roberta"]), trained_with)
    context = {"base": base, "name": " ".join([str(path), *overrides])}
    try:
        return schema.model_validate(values, context=context)
    except ValidationError as error:
        raise UserError(_refusal(path, tree, error, schema, overrides)) from None


def package_recipes() -> dict[str, str]:
    """Return {name: text} of the recipes that come with the package."""
    folder = Path(__file__).parents[1] / "recipes"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}


def _text_of(path: str | Path) -> str:
    """Return the text of a recipe, a file or one of the package; UserError where there is none."""
    of_package = package_recipes()
    if not os.path.isfile(path) and str(path) in of_package:
        return of_package[str(path)]
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; `ds-minimodel recipes` lists the recipes of the package"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot read the recipe ({reason})") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES:,} bytes; that is no recipe")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x}); convert the file"
        ) from None


class _YamlError(Exception):
    """Text that is no YAML of a recipe.

    Attributes:
        line: from 1.
    """

    def __init__(self, reason: object, line: int) -> None:
        super().__init__(reason)
        self.line = line


class _Constructor(SafeConstructor):
    """Makes text, numbers, truth values, null, lists, and mappings with each key once.

    A date stays text.
    """

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                # Half a surrogate pair is no text.
                value.encode()
                if "\0" in value:
                    raise ValueError
        except (ValueError, LookupError):
            # Python's int, float and encode raise these, which name no line.
            shown = str(node.value)
            if len(shown) > 40:
                shown = f"{shown[:40]}…"
            kind = str(node.tag).rpartition(":")[2]
            problem = f"{shown!r} is no {'text' if kind == 'str' else kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from None
        return value


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(text: str) -> tuple[Any, Node | None]:
    """Read a document of YAML 1.2.

    Returns:
        (value, composed tree); both are None where it is empty.

    Raises:
        _YamlError: anything is wrong with it.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.composer.warn_double_anchors = False
    try:
        tree = yaml.compose(text)
        if tree is None:
            return None, None
        return yaml.constructor.construct_document(tree), tree
    except YAMLError as error:
        # An error of a character has its position in the text instead of a mark.
        mark = getattr(error, "problem_mark", None)
        line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
        reason = getattr(error, "problem", None) or getattr(error, "reason", error)
        raise _YamlError(reason, line + 1) from None
    except RecursionError:
        raise _YamlError("nested too deeply", 1) from None


def _apply_override(values: dict[str, Any], override: str) -> None:
    """Put `key=value` (`adapt.lr=1e-3`) into nested dicts; UserError where it has another form."""
    key, equals, text = override.partition("=")
    if not equals or not key.isprintable() or not key:
        raise UserError(
            f"{override!r}: an override has the form key=value, for example adapt.lr=1e-3"
        )
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(values.get(section, {}), dict):
            raise UserError(f"{override}: {section} is a value, not a section")
        # A YAML alias may share the section, so a copy is changed.
        values[section] = dict(values.get(section, {}))
        values = values[section]
    try:
        values[last], _ = read_yaml(text)
    except _YamlError as error:
        raise UserError(f"{override}: {text!r} is not a valid YAML value ({error})") from None


# The key of a recipe that decides which others there are.
_CHOOSES_KEYS = ("model", "kind")


def _refusal(
    path: str | Path,
    tree: Node | None,
    error: ValidationError,
    schema: type[BaseModel],
    overrides: Sequence[str] = (),
) -> str:
    """Return the line that tells a user what `error` found in values for `schema`.

    It has the override, or file and line; the key; and what is wrong.
    """
    where, message = _first_fault(error, schema)
    if where:
        what = f"{'.'.join(where)}: {message}"
    else:
        # A message about the whole recipe begins with a key, where it is about one.
        key = re.split(r"[^\w.]", message, maxsplit=1)[0].rstrip(".")
        where = key.split(".") if key.split(".")[0] in schema.model_fields else []
        what = message if where else f"recipe: {message}"
    # Of two overrides of one key the last counts.
    given = {override: override.partition("=")[0] for override in reversed(overrides)}
    for override, key in given.items():
        path_of_key = key.split(".")
        if path_of_key == where:
            return f"{override}: {message}"
        if path_of_key == where[: len(path_of_key)]:
            return f"{override}: {what}"
    section = ".".join(where) + "."
    for override, key in given.items():
        if key.startswith(section) or key in message:
            what += f" (with {override})"
            break
    line = _line_of(tree, where)
    return f"{path}:{line}: {what}" if line else f"{path}: {what}"


def _first_fault(error: ValidationError, schema: type[BaseModel]) -> tuple[list[str], str]:
    """Return (key path, what is wrong there) of the fault that may have caused the others."""

    def rank(fault: ErrorDetails) -> tuple[bool, bool]:
        """Return a sort key: the kind of body first, then unknown keys, then all other faults.

        The kind decides which keys there are. A misspelt key is unknown, and the right one missing.
        """
        return fault["loc"] != _CHOOSES_KEYS, fault["type"] != "extra_forbidden"

    first, *others = sorted(error.errors(include_url=False), key=rank)
    where = [str(part) for part in first["loc"] if part not in ("tuple", "[key]")]
    section = schema
    within = where
    if where[:2] == ["finetune", "tasks"] and where[3:]:
        # Pydantic puts the kind of a task after its name.
        kind = where.pop(3)
        section = KINDS[kind].config
        within = where[3:]
    message = reason_of(first)
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _suggestion(within, section)
    elif first["type"] == "missing":
        message = "this key is missing"
    elif first["type"].startswith("union_tag"):
        where.append("kind")
        expected = first["ctx"].get("expected_tags")
        message = f"Input should be one of {expected}" if expected else "this key is missing"
    message = _retired(where, first) or message
    if others:
        message += f" (and {len(others)} more)"
    return where, message


def _retired(where: list[str], fault: Mapping[str, Any]) -> str | None:
    """Return what became of a key, or of its value, that was there in earlier commits."""
    key = ".".join(where)
    if where[:2] == ["finetune", "tasks"]:
        key = ".".join(["finetune.tasks.NAME", *where[3:]])
    value = fault["input"]
    if fault["type"].startswith("union_tag"):
        value = fault["ctx"].get("tag")
    of_value = retired(f"{key}={value}")
    return f"{value} {of_value}" if of_value else retired(key)


def _suggestion(where: list[str], schema: type[BaseModel]) -> str:
    """Return what may have been meant by the unknown key at the end of the key path `where`."""
    section: Any = schema
    for name in where[:-1]:
        field = getattr(section, "model_fields", {}).get(name)
        section = field.annotation if field else None
    known = list(getattr(section, "model_fields", {}))
    similar = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.7)
    if similar:
        return f"; did you mean {similar[0]}?"
    return f"; known keys: {', '.join(known)}" if known else ""


def _line_of(node: Node | None, where: list[str]) -> int | None:
    """Return the line (from 1) of a key path, or of the deepest part of it that is there."""
    line = None
    for part in where:
        if isinstance(node, MappingNode):
            entry = next((entry for entry in node.value if entry[0].value == part), None)
            if entry is None:
                break
            key, node = entry
            line = key.start_mark.line + 1
        elif isinstance(node, SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line
