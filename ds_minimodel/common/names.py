"""Names of languages, tasks and runs: what can be a folder's name on every disk, and is told apart there."""

import os
import re
import unicodedata
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

LONGEST_NAME = 199  # bytes: what is written beside a folder has its name and some more, of 255
LONGEST_PATH = 3000  # bytes of a workdir, of the 4,095 that Linux takes
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
    whole = os.path.abspath(path)
    if len(whole.encode()) > LONGEST_PATH or any(len(part.encode()) > 255 for part in whole.split("/")):
        raise ValueError(f"too long for a folder's path (255 bytes a part, {LONGEST_PATH:,} in all)")
    check_name(os.path.basename(whole))
    return path


def check_apart(names: Iterable[str]) -> None:
    """ValueError for two names that differ in case or in their Unicode form alone: some disks take them for one."""
    seen: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if folded in seen:
            raise ValueError(f"{seen[folded]!r} and {name!r} differ in case or Unicode form alone; disks mix them up")
        seen[folded] = name


Name = Annotated[str, AfterValidator(check_name)]
