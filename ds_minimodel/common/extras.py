"""Packages that the extras of ours install."""

import importlib
from typing import Any

from ds_minimodel.common.errors import UserError


def import_extra(module: str, extra: str) -> Any:
    """Import what an extra installs; UserError, with the command, where it is not there."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed; pip install 'ds_minimodel[{extra}]'"
        ) from None
