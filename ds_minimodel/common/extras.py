"""Packages that only an extra of this package installs."""

import importlib
from typing import Any

from ds_minimodel.common.errors import UserError


def import_extra(module: str, extra: str) -> Any:
    """Return the module that an extra installs.

    Raises:
        UserError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed; pip install 'ds_minimodel[{extra}]'"
        ) from None
