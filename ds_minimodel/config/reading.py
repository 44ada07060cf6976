"""Reading a recipe: the YAML file, overrides of the command line, the base that it starts from, and
then the schema.

What is wrong is one line: the override, or file and line; the key; what is wrong with it.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
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

MOST_BYTES = (
    1 << 17
)  # of a file: aliases, which make much of little, make no more than some seconds' work of it


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe at `path` and apply `key=value` overrides (`adapt.lr=1e-3`).

    path: a YAML file, or the name of a recipe that comes with the package (`paper`) where no file
    has it. Paths inside a recipe are relative to the current folder. Raises UserError for anything
    wrong.
    """
    try:
        values, tree = read_yaml(_text_of(path))
    except _Invalid as error:
        raise UserError(f"{path}:{error.line}: not valid YAML ({error})") from None
    return recipe_of_values(values, path, overrides, tree)


def recipe_of_values(
    values: Any, path: str | Path, overrides: Sequence[str] = (), tree: Node | None = None
) -> Recipe:
    """The recipe that is a mapping of keys to values; else as load_recipe. tree: as of read_yaml,
    for line numbers.

    Overrides change `values`.
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
    kind = base.config.kind if base else model.get("kind") if isinstance(model, dict) else None
    schema = recipe_class(
        BODIES.get(str(kind), BODIES["roberta"]),  # which refuses a kind that there is not
        base.config.trained_with if base else "",
    )
    try:
        return schema.model_validate(
            values, context={"base": base, "name": " ".join([str(path), *overrides])}
        )
    except ValidationError as error:
        raise UserError(_refusal(path, tree, error, schema, overrides)) from None


def package_recipes() -> dict[str, str]:
    """{name: text} of the recipes that come with the package."""
    folder = Path(__file__).parents[1] / "recipes"
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}


def _text_of(path: str | Path) -> str:
    if not os.path.isfile(path) and str(path) in (of_package := package_recipes()):
        return of_package[str(path)]
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; `ds-minimodel recipes` lists the recipes of the package"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot read the recipe ({getattr(error, 'strerror', None) or error})"
        ) from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES:,} bytes; that is no recipe")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: not UTF-8 text (byte 0x{data[error.start]:02x}); convert the file"
        ) from None


class _Invalid(Exception):
    """Text that is no YAML of a recipe. line: from 1."""

    def __init__(self, reason: object, line: int) -> None:
        super().__init__(reason)
        self.line = line


class _Constructor(SafeConstructor):
    """Makes values of text, numbers, truth values, null, lists and mappings, each key once; a date
    stays text.
    """

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # half a surrogate pair is no text
                if "\0" in value:
                    raise ValueError
        except (
            ValueError,
            LookupError,
        ):  # of Python's own int, float and encode, which have no line
            shown, kind = str(node.value), str(node.tag).rpartition(":")[2]
            problem = (
                f"{shown[:40]!r}{'…' * (len(shown) > 40)} is no {'text' if kind == 'str' else kind}"
            )
            raise ConstructorError(None, None, problem, node.start_mark) from None
        return value


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def read_yaml(text: str) -> tuple[Any, Node | None]:
    """(value, composed tree) of a document of YAML 1.2; _Invalid where anything is wrong with
    it.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.composer.warn_double_anchors = _Constructor, False
    try:
        tree = yaml.compose(text)
        return (None if tree is None else yaml.constructor.construct_document(tree)), tree
    except YAMLError as error:
        mark, place = getattr(error, "problem_mark", None), getattr(error, "position", 0)
        line = mark.line if mark else text.count("\n", 0, place)
        raise _Invalid(
            getattr(error, "problem", None) or getattr(error, "reason", error), line + 1
        ) from None
    except RecursionError:
        raise _Invalid("nested too deeply", 1) from None


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
        values[section] = dict(values.get(section, {}))  # a copy: a YAML alias shares it
        values = values[section]
    try:
        values[last], _ = read_yaml(text)
    except _Invalid as error:
        raise UserError(f"{override}: {text!r} is not a valid YAML value ({error})") from None


_CHOOSES_KEYS = ("model", "kind")  # of a recipe


def _refusal(
    path: str | Path,
    tree: Node | None,
    error: ValidationError,
    schema: type[BaseModel],
    overrides: Sequence[str] = (),
) -> str:
    """pydantic's `error` on values for `schema` as one line: the override, or file and line; key,
    what is wrong.
    """
    # First what chose the keys that there are, then an unknown key: where it is a misspelt one, the
    # missing one follows from it.
    faults = error.errors(include_url=False)
    faults.sort(
        key=lambda fault: (fault["loc"] != _CHOOSES_KEYS, fault["type"] != "extra_forbidden")
    )
    first, *others = faults
    where = [str(part) for part in first["loc"] if part not in ("tuple", "[key]")]
    keys, within = schema, where
    if (
        where[:2] == ["finetune", "tasks"] and where[3:]
    ):  # pydantic puts the kind after the task's name
        keys, within = KINDS[where.pop(3)].config, where[3:]
    message = reason_of(first)
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _suggestion(within, keys)
    elif first["type"] == "missing":
        message = "this key is missing"
    elif first["type"].startswith("union_tag"):
        where.append("kind")
        expected = first["ctx"].get("expected_tags")
        message = f"Input should be one of {expected}" if expected else "this key is missing"
    message = _retired(where, first) or message
    message += f" (and {len(others)} more)" if others else ""
    if where:
        what = f"{'.'.join(where)}: {message}"
    else:  # of the whole: such a message begins with a key, where it is about one
        key = re.split(r"[^\w.]", message, maxsplit=1)[0].rstrip(".")
        where = key.split(".") if key.split(".")[0] in schema.model_fields else []
        what = message if where else f"recipe: {message}"
    given = {
        override: override.partition("=")[0] for override in reversed(overrides)
    }  # the last one counts
    for override, key in given.items():
        if key.split(".") == where[: key.count(".") + 1]:
            return f"{override}: {message if key.split('.') == where else what}"
    section = ".".join(where) + "."
    concerned = [
        override for override, key in given.items() if key.startswith(section) or key in message
    ]
    line = _line_of(tree, where)
    return (
        f"{path}{f':{line}' if line else ''}: "
        f"{what}{f' (with {concerned[0]})' if concerned else ''}"
    )


def _retired(where: list[str], fault: Mapping[str, Any]) -> str | None:
    """What is wrong with the key path `where`, if it or its value was there in earlier commits."""
    key = ".".join(where)
    if where[:2] == ["finetune", "tasks"]:
        key = ".".join(["finetune.tasks.NAME", *where[3:]])
    value = fault["input"]
    if fault["type"].startswith("union_tag"):
        value = fault["ctx"].get("tag")
    of_value = retired(f"{key}={value}")
    return f"{value} {of_value}" if of_value else retired(key)


def _suggestion(where: list[str], schema: type[BaseModel]) -> str:
    """What may have been meant by the unknown key at the end of the key path `where`."""
    section: Any = schema
    for name in where[:-1]:
        field = getattr(section, "model_fields", {}).get(name)
        section = field.annotation if field else None
    known = list(getattr(section, "model_fields", {}))
    similar = difflib.get_close_matches(where[-1], known, 1, 0.7)
    return (
        f"; did you mean {similar[0]}?"
        if similar
        else f"; known keys: {', '.join(known)}"
        if known
        else ""
    )


def _line_of(node: Node | None, where: list[str]) -> int | None:
    """Line (from 1) of the key path `where` in the composed YAML, or of the deepest part that is
    there.
    """
    line = None
    for part in where:
        if isinstance(node, MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == part), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line
