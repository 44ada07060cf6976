"""Names of languages, tasks and runs: what can be a folder's name on every disk."""

import os
import re
from typing import Annotated

from pydantic import AfterValidator

LANGUAGE_CODE = "[a-z]{2,3}"  # of ISO 639, which the Hub takes in a card's front matter
LONGEST_NAME = 199  # bytes: what is written beside a folder has its name and some more, of 255
# How the program calls what it writes beside the folder NAME: NAME.job.json and so on.
_BESIDE = re.compile(r"\.(job\.json|lock|tmp\d*|former|blocks|old-.*)$", re.IGNORECASE)


def check_name(name: str) -> str:
    """`name`; ValueError where it cannot be the name of a folder on every disk."""
    at_its_ends = name.strip(". ") != name
    if (
        not name
        or not name.isprintable()
        or {*name} & {*"/\\"}
        or at_its_ends
        or len(name.encode()) > LONGEST_NAME
    ):
        raise ValueError(
            f"{name[:50]!r} cannot be a folder's name: no slash, no unprintable character, no dot "
            "or space at its "
            f"ends, at most {LONGEST_NAME} bytes"
        )
    if _BESIDE.search(name):
        raise ValueError(f"{name[:50]!r} ends like files that are written beside a folder")
    return name


def check_workdir(path: str) -> str:
    """`path`; ValueError where it cannot be a folder, or its last part names no run."""
    if not path:
        raise ValueError("a path is expected")
    check_name(os.path.basename(os.path.abspath(path)))
    return path


Name = Annotated[str, AfterValidator(check_name)]
