"""Run the cells of the fifth study, part A: each is a call of `ds-minimodel extend`, its result a
line of results.jsonl.

    python -m study.fifth.run FOLDER BASE [--minutes M] [WORD…]

FOLDER has the pairs (texts.py), BASE is all-MiniLM-L6-v2. lines.py says in which order.
"""

from dataclasses import replace
from pathlib import Path

from ds_minimodel.api import load_recipe
from study.fifth import rivals
from study.fifth.cells import ARMS, RIVALS, TESTS, Cell, declared, lines_of, write_pairs
from study.fifth.lines import call, main, rows_of
from study.fifth.results import RESULTS, Row, result_of

MIN_TESTS = 100  # lines, for a kind of text to be scored


def run(cell: Cell, end: float, folder: Path, base: Path) -> Row:
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
    call(end, *command, *ARMS[cell.arm])
    recipe = out / "extended/recipe.yaml"
    changes = [f"workdir={out / 'run'}", f"seed={cell.seed}"]
    if cell.arm.startswith("means"):
        changes.append("adapt.initialisation=pieces")
    is_changed = cell.arm.startswith("means") or cell.seed > 1
    if is_changed:
        call(end, "run", recipe, *changes)
    return result_of(cell, load_recipe(recipe, changes if is_changed else []))


def run_rival(cell: Cell, folder: Path, base: Path) -> Row:
    """Score a rival on what `aligned` was scored on; `all` trains as long as `trained` took."""
    seconds = 0
    if cell.arm == "all":
        seconds = rows_of(RESULTS)[replace(cell, arm="trained").name]["core_seconds"]
    aligned = folder / "cells" / replace(cell, arm="aligned").name / "extended"
    scores, learned = rivals.run(cell.arm, cell.language, aligned, base, seconds)
    said = {"learned": learned, "new_tokens": 0, "steps": 0, "eflops": 0, "scores": scores}
    return {**said, "english": {}}


if __name__ == "__main__":
    main(RESULTS, declared(), run, "folder", "base")
