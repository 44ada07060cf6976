"""YAML of recipes: its reading, overrides of the command line, and messages with file and line."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from yaml.constructor import ConstructorError

from ds_minimodel.common.errors import UserError, reason_of

MOST_BYTES = 1 << 19  # of a file
MOST_VALUES = 50_000  # of a recipe, those of its aliases counted wherever they stand
DEEPEST = 50  # levels of nesting


class Yaml12(yaml.SafeLoader):
    """YAML 1.2 scalars: `no` stays a language code, 7e-4 is a number. A key given twice is refused, and so is a tag
    that is none of a recipe's: of text, numbers, truth values, null, lists and mappings.

    Whatever is wrong raises a YAMLError, after a second or two of reading at most.
    """

    values = depth = 0  # composed so far; of the node at hand

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.values, self.depth = self.values + 1, self.depth + 1
        if self.depth > DEEPEST or self.values > MOST_VALUES:
            raise _too_large(self.peek_event().start_mark, self.depth > DEEPEST)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.composer.ComposerError(None, None, f"the key {key.value} is given twice", key.start_mark)
                seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                _check_text(value)
        except (ValueError, LookupError) as error:  # of Python's int and float, and of how they are called
            reason = f": {error}" if isinstance(error, _NotText) else ""
            raise ConstructorError(None, None, f"{_shown(node)}{reason}", node.start_mark) from None
        return value


class _NotText(ValueError):
    """A text that no file and no name can hold."""


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _NotText("text without NUL is expected")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _NotText("half a surrogate pair is no text") from None


def _shown(node: yaml.Node) -> str:
    text = node.value if isinstance(node.value, str) else "this"
    return f"{text[:40]!r}{'…' * (len(text) > 40)} is no {node.tag.rpartition(':')[2]}"


Yaml12.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.endswith((":null", ":bool", ":float", ":str", ":seq", ":map"))
}
Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?\d+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?$", "-+.0123456789"),
):
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def _integer(loader: Yaml12, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


Yaml12.add_constructor("tag:yaml.org,2002:int", _integer)


def read_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """(value, composed tree) of a YAML document; YAMLError where anything is wrong with it."""
    loader = Yaml12(text)
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None, None
        _check_size(tree, {}, DEEPEST)
        return loader.construct_document(tree), tree
    finally:
        loader.dispose()


def problem_of(error: yaml.YAMLError) -> str:
    """What a YAMLError says is wrong, without the place."""
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def _check_size(node: yaml.Node, sizes: dict[yaml.Node, int], depth: int) -> int:
    """Values below `node`; YAMLError where there are too many, or an alias is within what it stands for."""
    if node in sizes:
        return sizes[node]
    if not depth:
        raise _too_large(node.start_mark, is_deep=True)
    size = 1
    if isinstance(node, yaml.CollectionNode):
        for part in node.value:
            inner = part if isinstance(part, tuple) else (part,)
            size += sum(_check_size(value, sizes, depth - 1) for value in inner)
    if size > MOST_VALUES:
        raise _too_large(node.start_mark, is_deep=False)
    sizes[node] = size
    return size


def _too_large(mark: yaml.Mark, is_deep: bool) -> yaml.YAMLError:
    limit = f"nested more than {DEEPEST} levels deep" if is_deep else f"more than {MOST_VALUES:,} values"
    return ConstructorError(None, None, limit, mark)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Put `key=value` (`adapt.lr=1e-3`) into nested dicts; UserError where it has another form."""
    key, equals, text = override.partition("=")
    if not equals or not key.isprintable() or not key:
        raise UserError(f"{override!r}: an override has the form key=value, for example adapt.lr=1e-3")
    *sections, last = key.split(".")
    for section in sections:
        if not isinstance(values.get(section, {}), dict):
            raise UserError(f"{override}: {section} is a value, not a section")
        values[section] = dict(values.get(section, {}))  # a copy: a YAML alias shares it
        values = values[section]
    try:
        values[last], _ = read_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"{override}: {text!r} is not a valid YAML value ({problem_of(error)})") from None


_CHOOSE_KEYS = (("model", "kind"), ("objective",))  # of a recipe


def refusal(
    path: str | Path,
    tree: yaml.Node | None,
    error: ValidationError,
    schema: type[BaseModel],
    overrides: Sequence[str] = (),
) -> str:
    """pydantic's `error` on values for `schema` as one line: the override, or file and line; key, what is wrong."""
    # First what chose the keys that there are, then an unknown key: where it is a misspelt one, the missing one follows
    # from it.
    faults = error.errors(include_url=False, include_input=False)
    faults.sort(key=lambda fault: (fault["loc"] not in _CHOOSE_KEYS, fault["type"] != "extra_forbidden"))
    first, *others = faults
    where = [str(part) for part in first["loc"] if part not in ("tuple", "[key]")]
    message = reason_of(first)
    if first["type"] == "extra_forbidden":
        message = "unknown key" + _suggestion(where, schema)
    elif first["type"] == "missing":
        message = "this key is missing"
    message += f" (and {len(others)} more)" if others else ""
    if where:
        what = f"{'.'.join(where)}: {message}"
    else:  # of the whole: such a message begins with a key, where it is about one
        key = re.split(r"[^\w.]", message, maxsplit=1)[0].rstrip(".")
        where = key.split(".") if key.split(".")[0] in schema.model_fields else []
        what = message if where else f"recipe: {message}"
    return _placed(path, tree, where, message, what, overrides)


def _placed(
    path: str | Path, tree: yaml.Node | None, where: list[str], message: str, what: str, overrides: Sequence[str]
) -> str:
    """`what` is wrong with the key path `where`, after the override that gave it, or after file and line."""
    given = {override: override.partition("=")[0] for override in reversed(overrides)}  # the last one counts
    for override, dotted in given.items():
        key = dotted.split(".")
        if key == where[: len(key)]:
            return f"{override}: {message if key == where else what}"
    section = ".".join(where) + "."
    concerned = [override for override, key in given.items() if key.startswith(section) or key in message]
    line = line_of(tree, where)
    return f"{path}{f':{line}' if line else ''}: {what}{f' (with {concerned[0]})' if concerned else ''}"


def _suggestion(where: list[str], schema: type[BaseModel]) -> str:
    similar, known = similar_key(where, schema), _known_keys(where, schema)
    return f"; did you mean {similar}?" if similar else f"; known keys: {', '.join(known)}" if known else ""


def similar_key(where: list[str], schema: type[BaseModel]) -> str | None:
    """The key of `schema` that the key path `where` perhaps means."""
    return next(iter(difflib.get_close_matches(where[-1], _known_keys(where, schema), 1, 0.7)), None)


def _known_keys(where: list[str], schema: type[BaseModel]) -> list[str]:
    """The keys beside the last one of the key path `where`."""
    section: Any = schema
    for name in where[:-1]:
        field = getattr(section, "model_fields", {}).get(name)
        types = (field.annotation, *get_args(field.annotation)) if field else ()  # X, or X of `X | None`
        section = next((part for part in types if hasattr(part, "model_fields")), None)
    return list(getattr(section, "model_fields", {}))


def line_of(node: yaml.Node | None, where: list[str]) -> int | None:
    """Line (from 1) of the key path `where` in the composed YAML, or of the deepest part that is there."""
    line = None
    for part in where:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line
