"""Names of languages, tasks and runs: what can be a folder's name on every disk."""

import os
import re
from typing import Annotated

from pydantic import AfterValidator

# Of ISO 639, which the Hub takes in a card's front matter.
LANGUAGE_CODE = "[a-z]{2,3}"
# A disk takes 255 bytes. The rest is for the names of what is written beside the folder.
MAX_BYTES = 199
# How the program calls what it writes beside the folder NAME: NAME.job.json and so on.
_BESIDE = re.compile(r"\.(job\.json|lock|tmp\d*|former|blocks|old-.*)$", re.IGNORECASE)


def check_name(name: str) -> str:
    """Return `name`, or raise ValueError where it cannot be a folder's name on every disk."""
    if (
        not name
        or not name.isprintable()
        or {*name} & {*"/\\"}
        or name.strip(". ") != name
        or len(name.encode()) > MAX_BYTES
    ):
        raise ValueError(
            f"{name[:50]!r} cannot be a folder's name: no slash, no unprintable character, no dot "
            f"or space at its ends, at most {MAX_BYTES} bytes"
        )
    if _BESIDE.search(name):
        raise ValueError(f"{name[:50]!r} ends like files that are written beside a folder")
    return name


def check_workdir(path: str) -> str:
    """Return `path`, or raise ValueError where it is empty or ends in no name of a run."""
    if not path:
        raise ValueError("a path is expected")
    check_name(os.path.basename(os.path.abspath(path)))
    return path


Name = Annotated[str, AfterValidator(check_name)]
