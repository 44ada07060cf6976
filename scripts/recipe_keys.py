"""Write the reference of keys in docs/recipes.md from the typed recipe.

    python scripts/recipe_keys.py

A key's meaning is the docstring below it, where its section is declared: beside what it configures.
"""

import json
import re
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.config import Section
from ds_minimodel.config.schema import PaperRecipe
from ds_minimodel.evaluation import KINDS
from ds_minimodel.evaluation.kind import FinetunedConfig
from ds_minimodel.models import BODIES

PAGE = Path(__file__).parents[1] / "docs/recipes.md"
BEGIN, END = "<!-- from here on made by scripts/recipe_keys.py -->\n", "<!-- to here -->\n"
# Values that a line lists; where there are more, another table has them.
MAX_SHOWN = 5
# Columns of a line, and the one at which its comment begins.
WIDTH = 112
COMMENT = 30


def choices_of(schema: Mapping[str, Any]) -> str:
    """The values that a key can have, in words; empty where any of a type will do."""
    for alternative in schema.get("anyOf", [schema]):
        values = alternative.get("enum", [])
        if values and len(values) <= MAX_SHOWN:
            *first, last = map(str, values)
            return f"{', '.join(first)} or {last}. "
    return ""


def default_of(schema: Mapping[str, Any]) -> str:
    """A key's default as a recipe spells it; empty where it has none."""
    default = schema.get("default")
    if default is None or default == "" or (isinstance(default, dict) and default):
        return ""
    return default if isinstance(default, str) else json.dumps(default)


def meaning_of(section: type[Section], key: str) -> str:
    """The docstring of a key: its section's own, or that of the class that it is inherited from."""
    above = [cls for cls in section.__mro__ if issubclass(cls, Section)]
    fields = [cls.model_fields[key] for cls in above if key in cls.model_fields]
    return " ".join(next(field.description for field in fields if field.description).split())


def line_of(indent: str, key: str, value: str, comment: str) -> str:
    """A key with its default and a comment, which goes on below itself where it is long."""
    begin = f"{indent}{key}: {value}".rstrip().ljust(COMMENT)
    comment = comment.replace("`", "")
    parts = textwrap.wrap(comment, WIDTH - len(begin) - len(" # "), break_on_hyphens=False)
    below = " " * len(begin)
    first, *others = [f"# {part}" for part in parts]
    return "\n".join([f"{begin} {first}", *(f"{below} {part}" for part in others)]) + "\n"


def lines(section: type[Section], indent: str = "  ", without: Collection[str] = ()) -> str:
    """The lines of a section's keys, but for some; keys that are sections have none."""
    schema = section.model_json_schema()
    required = schema.get("required", [])
    return "".join(
        line_of(
            indent,
            key,
            default_of(keys),
            ("required. " if key in required else "")
            + f"{choices_of(keys)}{meaning_of(section, key)}",
        )
        for key, keys in schema["properties"].items()
        if key not in without and "$ref" not in keys
    )


def tasks() -> str:
    """The lines of the keys of any kind of task, each with the kinds that have it where not all
    do; `finetuned` stands for those that are finetuned.
    """
    own = {name: kind.config.model_json_schema()["properties"] for name, kind in KINDS.items()}
    finetuned = [name for name, kind in KINDS.items() if issubclass(kind.config, FinetunedConfig)]
    made = ""
    for key in dict.fromkeys(key for schemas in own.values() for key in schemas):
        kinds = [name for name, schemas in own.items() if key in schemas]
        config = KINDS[kinds[0]].config
        defaults = dict.fromkeys(default_of(own[name][key]) for name in kinds)
        value = "" if key == "kind" else " or ".join(filter(None, defaults))
        named = "finetuned" if kinds == finetuned else ", ".join(kinds)
        of = "" if len(kinds) == len(KINDS) else f"[{named}] "
        required = "required. " if key in ("kind", "test", "train") else ""
        choices = choices_of(own[kinds[0]][key])
        made += line_of("      ", key, value, f"{of}{required}{choices}{meaning_of(config, key)}")
    return made


def body(model: type[Section]) -> tuple[str, str]:
    """The lines of the keys of any kind of body, each below the kind that is first to have it, and
    a table of the kinds.
    """
    finished = {"head"}  # of a base alone, by whose files it is set
    shown = {*model.model_fields}
    keys = lines(model, without=finished)
    kinds = ""
    for name, kind in BODIES.items():
        kinds += f"| `{name}` | {' '.join((kind.__doc__ or '').split())} |\n"
        new = lines(kind, without=shown)
        keys += f"  # New in {name}:\n{new}" if new else ""
        shown |= {*kind.model_fields}
    return keys, kinds


def all_keys() -> str:
    """The whole part of the page that is made."""
    section: dict[str, Any] = {
        name: field.annotation for name, field in PaperRecipe.model_fields.items()
    }
    training = section["pretrain"].model_fields
    # Tasks stand below their key, which has no value then.
    not_tasks = {*section["finetune"].model_fields} - {"tasks"}
    keys_of_body, kinds = body(section["model"])

    def block(*names: str) -> str:
        return "".join(f"{name}:\n{lines(section[name])}" for name in names)

    parts = {
        "What is built": lines(PaperRecipe, indent="") + block("languages"),
        "Text": block("data", "tokenizer"),
        "The body": f"model:\n{keys_of_body}{block('mini')}",
        "Training: `pretrain`, `build_mini` and `adapt`": (
            f"adapt:\n{lines(section['pretrain'])}{lines(section['adapt'], without=training)}"
            f"build_mini:\n{lines(section['build_mini'], without=training)}{block('optimizer')}"
        ),
        "Tasks": (
            f"finetune:\n{lines(section['finetune'], without=not_tasks).replace('{}', '  ')}"
            f"    NAME:\n{tasks()}"
            f"{lines(section['finetune'], without=['tasks'])}"
        ),
        "The machine": block("engine", "checkpoint"),
    }
    made = "".join(f"\n### {heading}\n```yml\n{text}```\n" for heading, text in parts.items())
    return f"{made}\n### Kinds of body\n| kind | what it is |\n|---|---|\n{kinds}"


def with_keys(page: str) -> str:
    """The text of the page with its keys as the code has them."""
    return re.sub(
        f"({BEGIN}).*({END})",
        lambda match: match[1] + all_keys() + match[2],
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(with_keys(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
