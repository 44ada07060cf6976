"""Names of languages, tasks and runs: what can be a folder's name on every disk."""

import os
import re
from typing import Annotated

from pydantic import AfterValidator

LONGEST_NAME = 199  # bytes: what is written beside a folder has its name and some more, of 255
# How the program calls what it writes beside the folder NAME: NAME.job.json and so on.
_BESIDE = re.compile(r"\.(job\.json|progress\.json|lock|tmp\d*|former|partial|blocks|old-.*)$", re.IGNORECASE)


def check_name(name: str) -> str:
    """`name`; ValueError where it cannot be the name of a folder on every disk."""
    wrong = _wrong_with(name)
    if wrong:
        raise ValueError(f"{name[:50]!r} {wrong}; it is to be the name of a folder")
    return name


def _wrong_with(name: str) -> str:
    if not name:
        return "is empty"
    if not name.isprintable():
        return "holds a character that does not show"
    if "/" in name or "\\" in name:
        return "holds a slash"
    if name[0] in ". " or name[-1] in ". ":
        return "begins or ends with a dot or a space"
    if len(name.encode()) > LONGEST_NAME:
        return f"takes more than {LONGEST_NAME} bytes"
    if _BESIDE.search(name):
        return "ends like files that are written beside a folder"
    return ""


def check_workdir(path: str) -> str:
    """`path`; ValueError where it cannot be a folder, or its last part names no run."""
    if not path:
        raise ValueError("a path is expected")
    check_name(os.path.basename(os.path.abspath(path)))
    return path


Name = Annotated[str, AfterValidator(check_name)]
