"""Running the cells of the fifth study one after the other; each becomes a line of a file.

What has a line isn't run again, and what was interrupted goes on. No cell begins after M minutes,
and the one that runs then is stopped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from ds_minimodel.common.files import read_json_lines
from study.fifth.cells import Cell
from study.fifth.results import Row, commit

MAX_SECONDS = 1200  # of a cell at a time


def rows_of(path: Path) -> dict[str, Row]:
    """{name of a cell: its line}; none where there is no file."""
    return {row["cell"]: row for row in read_json_lines(path)}


def call(end: float, *words: object) -> None:
    """Run a command of ds-minimodel; TimeoutExpired where it has not ended by `end`."""
    subprocess.run(
        [sys.executable, "-m", "ds_minimodel", *map(str, words)],
        check=True,
        timeout=max(1.0, end - time.monotonic()),
    )


def core_seconds() -> float:
    """What this process took, and those that it started."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main(path: Path, cells: Iterable[Cell], run: Callable[..., Row], *places: str) -> None:
    """Run the cells that the command line asks for; with words those whose names have one of them.

    Args:
        path: File of the lines.
        cells: In the registered order.
        run: Called with a cell, the time by which it must end, and the folders or files that the
            command line names. It raises KeyError where the line of another cell is missing.
        places: Names of those on the command line.
    """
    parser = argparse.ArgumentParser()
    for place in places:
        parser.add_argument(place, type=Path)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args()
    folders = [getattr(given, place).resolve() for place in places]
    end = time.monotonic() + 60 * given.minutes
    for cell in cells:
        is_wanted = not given.words or any(word in cell.name for word in given.words)
        began = time.monotonic()
        if cell.name in rows_of(path) or not is_wanted or began >= end:
            continue
        before = core_seconds()
        try:
            row = run(cell, min(end, began + MAX_SECONDS), *folders)
        except (subprocess.SubprocessError, KeyError) as error:
            print(f"{cell.name}: {error}", file=sys.stderr)
            continue
        took = {"commit": commit(), "core_seconds": round(core_seconds() - before)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": cell.name, **asdict(cell), **row, **took}) + "\n")
