"""Run the cells of the fifth study, part A: each is a call of `ds-minimodel extend`, its result a
line of results.jsonl.

    python -m study.fifth.run FOLDER BASE [--minutes M] [WORD…]

FOLDER has the pairs (texts.py), BASE is all-MiniLM-L6-v2. Cells come in the registered order, with
words those whose names have one of them. What has a line is not run again, and what was interrupted
goes on. No cell begins after M minutes, and the one that runs then is stopped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ds_minimodel.api import load_recipe
from ds_minimodel.common.files import read_json_lines
from study.fifth import rivals
from study.fifth.cells import ARMS, RIVALS, TESTS, Cell, declared, lines_of, write_pairs
from study.fifth.results import RESULTS, Row, commit, result_of

MIN_TESTS = 100  # lines, for a kind of text to be scored
MAX_SECONDS = 1200  # of a cell at a time


def run(cell: Cell, folder: Path, base: Path, seconds: float) -> Row:
    """Run a cell to its end; TimeoutExpired where the time does not do, and it can go on."""
    if cell.arm in RIVALS:
        return run_rival(cell, folder, base)
    out = folder / "cells" / cell.name
    out.mkdir(parents=True, exist_ok=True)
    texts = folder / cell.language
    paths = [texts / f"{test}-test.tsv" for test in TESTS]
    tests = [path for path in paths if len(lines_of(path)) >= MIN_TESTS]
    command = ["extend", base, "--language", cell.language, "--out", out / "extended"]
    command += ["--pairs", *write_pairs(cell, texts, out), "--test-pairs", *tests]
    commands = [[*command, *ARMS[cell.arm]]]
    recipe = out / "extended/recipe.yaml"
    changes = [f"workdir={out / 'run'}", f"seed={cell.seed}"]
    if cell.arm.startswith("means"):
        changes.append("adapt.initialisation=pieces")
    is_changed = cell.arm.startswith("means") or cell.seed > 1
    if is_changed:
        commands.append(["run", recipe, *changes])
    began = time.monotonic()
    before = core_seconds()
    for words in commands:
        subprocess.run(
            [sys.executable, "-m", "ds_minimodel", *map(str, words)],
            check=True,
            timeout=max(1.0, began + min(seconds, MAX_SECONDS) - time.monotonic()),
        )
    own = load_recipe(recipe, changes if is_changed else [])
    return {**result_of(cell, own), "core_seconds": round(core_seconds() - before)}


def run_rival(cell: Cell, folder: Path, base: Path) -> Row:
    """Score a rival on what `aligned` was scored on; `all` trains as long as `trained` took."""
    rows = {row["cell"]: row for row in read_json_lines(RESULTS)}
    seconds = rows[replace(cell, arm="trained").name]["core_seconds"] if cell.arm == "all" else 0
    aligned = folder / "cells" / replace(cell, arm="aligned").name / "extended"
    began = time.process_time()
    scores, learned = rivals.run(cell.arm, cell.language, aligned, base, seconds)
    took = round(time.process_time() - began)
    said = {"learned": learned, "new_tokens": 0, "steps": 0, "eflops": 0, "scores": scores}
    return {"cell": cell.name, **asdict(cell), **said, "english": {}, "commit": commit()} | {
        "core_seconds": took
    }


def core_seconds() -> float:
    """What the processes took that were started here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(folder: Path, base: Path, minutes: float, words: Sequence[str]) -> None:
    end = time.monotonic() + 60 * minutes
    done = {row["cell"] for row in read_json_lines(RESULTS)} if RESULTS.exists() else set()
    for cell in declared():
        is_wanted = not words or any(word in cell.name for word in words)
        if cell.name in done or not is_wanted or time.monotonic() >= end:
            continue
        try:
            row = run(cell, folder.resolve(), base.resolve(), end - time.monotonic())
        except (subprocess.SubprocessError, KeyError) as error:
            print(f"{cell.name}: {error}", file=sys.stderr)
            continue
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("words", nargs="*")
    main(**vars(parser.parse_intermixed_args()))
