"""Options of a command, made from the fields of the section of settings that it takes."""

import argparse
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from ds_minimodel.common.config import Section
from ds_minimodel.extend.config import Metavar, option_of


def add_options(command: argparse.ArgumentParser, section: type[Section]) -> None:
    """Add an option for each field of a section.

    The field's docstring is the help. Values stay as they were typed: the section checks them.
    """
    for name, field in section.model_fields.items():
        # A field's type may bring a marker; that of the field itself comes after it.
        (*_, metavar) = (mark for mark in field.metadata if isinstance(mark, Metavar))
        settings: dict[str, Any] = {"metavar": metavar.name, "help": _help_of(field)}
        if _holds_many(field):
            settings["nargs"] = "+"
        if metavar.is_positional:
            if not field.is_required():
                # Argparse takes no value for it where an option follows; main.parse gathers them.
                settings["nargs"] = "*"
                command.set_defaults(rest_of=name)
            command.add_argument(name, **settings)
            continue
        if _holds_many(field):
            settings["action"] = "extend"
        command.add_argument(
            option_of(name),
            required=field.is_required(),
            default=argparse.SUPPRESS,
            **settings,
        )


def given_of(options: argparse.Namespace, section: type[Section]) -> dict[str, Any]:
    """Return the fields of a section that were given on the command line."""
    return {name: value for name, value in vars(options).items() if name in section.model_fields}


def _holds_many(field: FieldInfo) -> bool:
    """Return whether a field is a list or a mapping, which may be None."""
    kinds = (field.annotation, *get_args(field.annotation))
    return any(get_origin(kind) in (list, dict) for kind in kinds)


def _help_of(field: FieldInfo) -> str:
    """Return a field's docstring with its default, where that is a word or a number."""
    text = " ".join((field.description or "").split())
    if isinstance(field.default, str):
        text += f" Default: {field.default}."
    return text.replace("%", "%%")
