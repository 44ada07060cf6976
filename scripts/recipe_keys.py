"""Write the tables of keys in docs/recipes.md from the typed recipe.

    python scripts/recipe_keys.py

A key's meaning is the docstring below it, where its section is declared: beside what it configures.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.config import Section
from ds_minimodel.config.schema import PaperRecipe
from ds_minimodel.evaluation import KINDS
from ds_minimodel.models import BODIES

PAGE = Path(__file__).parents[1] / "docs/recipes.md"
BEGIN, END = "<!-- from here on made by scripts/recipe_keys.py -->\n", "<!-- to here -->\n"
BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
HEAD = "| key | default, type | meaning |\n|---|---|---|\n"
NAMES = {"string": "text", "number": "number", "integer": "integer", "boolean": "`true`, `false`"}


def type_of(schema: Mapping[str, Any]) -> str:
    """A key's type in words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(type_of(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "object":
        inner, of = schema["additionalProperties"], "role" if "propertyNames" in schema else "text"
        return f"{{{of}: {'task' if 'oneOf' in inner else type_of(inner)}}}"
    if "prefixItems" in schema:
        return f"[{', '.join(map(type_of, schema['prefixItems']))}]"
    if schema["type"] == "array":
        return f"list of {type_of(schema['items'])}" + (
            ", one or more" if schema.get("minItems") else ""
        )

    is_count = schema["type"] == "integer"  # whose bounds only keep it from being absurd
    bounds = ", ".join(
        f"{sign}{schema[bound]:g}"
        for bound, sign in BOUNDS.items()
        if bound in schema and not (is_count and (bound == "maximum" or schema[bound] == 0))
    )
    return f"{NAMES[schema['type']]} {bounds}".strip()


def cell_of(schema: Mapping[str, Any]) -> str:
    """A key's type, and its default as a recipe spells it, if it has one; of numbers that and
    bounds alone.
    """
    if "default" not in schema:
        return f"{type_of(schema)}, required"
    value = schema["default"]
    if value is None or value == "" or isinstance(value, dict | list):
        return type_of(schema)
    shown, (name, _, bounds) = (
        f"`{value if isinstance(value, str) else json.dumps(value)}`",
        type_of(schema).partition(" "),
    )
    return (
        ", ".join(filter(None, (shown, bounds)))
        if name in ("integer", "number")
        else f"{type_of(schema)} ({shown})"
    )


def meaning_of(section: type[Section], key: str) -> str:
    """The docstring of a key: its section's own, or that of the class that it is inherited from."""
    above = [cls for cls in section.__mro__ if issubclass(cls, Section)]
    fields = [cls.model_fields[key] for cls in above if key in cls.model_fields]
    return " ".join(next(field.description for field in fields if field.description).split())


def rows(section: type[Section], path: str = "", without: Collection[str] = ()) -> str:
    """The rows of a section's keys at a path, but for some; keys that are sections have none."""
    schemas = section.model_json_schema()["properties"]
    return "".join(
        f"| `{path}{key}` | {cell_of(schemas[key])} | {meaning_of(section, key)} |\n"
        for key in schemas
        if key not in without and "$ref" not in schemas[key]
    )


def tasks() -> str:
    """The rows of the keys of any kind of task, each with the kinds that have it where not all
    do.
    """
    own = {name: kind.config.model_json_schema()["properties"] for name, kind in KINDS.items()}
    table = ""
    for key in dict.fromkeys(key for schemas in own.values() for key in schemas):
        kinds = [name for name, schemas in own.items() if key in schemas]
        cells = dict.fromkeys(cell_of(own[name][key]) for name in kinds)
        cell = " or ".join(cells).replace(", required or ", " or ")
        of = "" if len(kinds) == len(KINDS) else f"{', '.join(f'`{name}`' for name in kinds)}: "
        table += (
            f"| `finetune.tasks.NAME.{key}` | {cell} | "
            f"{of}{meaning_of(KINDS[kinds[0]].config, key)} |\n"
        )
    return table


def body(model: type[Section]) -> tuple[str, str]:
    """The rows of the keys of any kind of body, and those of the kinds, each with the keys that it
    is first to have.
    """
    finished = {"head"}  # of a base alone, by whose files it is set
    keys, kinds, shown = rows(model, "model.", finished), "", {*model.model_fields}
    for name, kind in BODIES.items():
        new = [f"`{key}`" for key in kind.model_fields if key not in shown]
        kinds += f"| `{name}` | {' '.join((kind.__doc__ or '').split())} | {', '.join(new)} |\n"
        keys += rows(kind, "model.", shown)
        shown |= {*kind.model_fields}
    return keys, kinds


def all_tables() -> str:
    """The whole part of the page that is made."""
    section: dict[str, Any] = {
        name: field.annotation for name, field in PaperRecipe.model_fields.items()
    }
    training, (keys_of_body, kinds) = section["pretrain"].model_fields, body(section["model"])
    parts = {
        "What is built": [rows(PaperRecipe), rows(section["languages"], "languages.")],
        "Text": [rows(section[name], f"{name}.") for name in ("data", "tokenizer")],
        "The body": [keys_of_body, rows(section["mini"], "mini.")],
        "Training: `pretrain`, `build_mini` and `adapt`": [
            rows(section["pretrain"], "adapt."),
            *(rows(section[name], f"{name}.", training) for name in ("build_mini", "adapt")),
            rows(section["optimizer"], "optimizer."),
        ],
        "Tasks": [rows(section["finetune"], "finetune."), tasks()],
        "The machine": [rows(section[name], f"{name}.") for name in ("engine", "checkpoint")],
    }
    tables = "".join(f"\n### {heading}\n{HEAD}{''.join(made)}" for heading, made in parts.items())
    return (
        f"{tables}\n### Kinds of body\n| `model.kind` | what it is | new keys "
        f"|\n|---|---|---|\n{kinds}"
    )


def with_tables(page: str) -> str:
    """The text of the page with its tables as the code has them."""
    return re.sub(
        f"({BEGIN}).*({END})",
        lambda match: match[1] + all_tables() + match[2],
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
