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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ds_minimodel
from ds_minimodel.api import load_recipe, recipe_costs
from ds_minimodel.common.files import read_json, read_json_lines
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.report.curves import SCORES_FILE
from study.fifth.cells import ARMS, TESTS, Cell, declared, lines_of, write_pairs

RESULTS = Path(__file__).with_name("results.jsonl")
MIN_TESTS = 100  # lines, for a kind of text to be scored
MAX_SECONDS = 1200  # of a cell at a time
# What a line says of the English of the first kind that is scored, and of tokens.
OF_ENGLISH = "source_lines cut_otherwise same_changed tokens_before tokens_after old_share".split()
Row = dict[str, Any]


def run(cell: Cell, folder: Path, base: Path, seconds: float) -> Row:
    """Run a cell to its end; TimeoutExpired where the time does not do, and it can go on."""
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


def core_seconds() -> float:
    """What the processes took that were started here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result_of(cell: Cell, recipe: Recipe) -> Row:
    """What stands in results.jsonl, but for the time."""
    layout = WorkdirLayout(recipe.workdir)
    (system,) = recipe.chosen_systems
    corpus = PairCorpus(layout.pairs(cell.language))
    scores = {
        task: read_json(layout.evaluate(system, cell.language, task, recipe.seed) / SCORES_FILE)
        for task in recipe.finetune.tasks
        if task.endswith("-test")
    }
    costs = recipe_costs(recipe) if recipe.adapt.steps else []
    path = layout.changes(system, cell.language)  # of extend alone
    changes = read_json(path) if path.exists() else {}
    return {
        "cell": cell.name,
        **asdict(cell),
        "learned": {text.name: len(text.pairs) for text in corpus.training},
        "new_tokens": recipe.tokenizer.vocab_size,
        "steps": recipe.adapt.steps,
        "eflops": sum(row["executed_eflops"] for row in costs if row["step"] == "adapt"),
        "scores": {task: rows[-1] for task, rows in scores.items()},
        "english": {key: value for key, value in changes.items() if key in OF_ENGLISH},
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the package that runs."""
    folder = str(Path(ds_minimodel.__file__).parent)
    command = ["git", "-C", folder, "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, text=True).strip()


def main(folder: Path, base: Path, minutes: float, words: Sequence[str]) -> None:
    end = time.monotonic() + 60 * minutes
    done = {row["cell"] for row in read_json_lines(RESULTS)} if RESULTS.exists() else set()
    for cell in declared():
        is_wanted = not words or any(word in cell.name for word in words)
        if cell.name in done or not is_wanted or time.monotonic() >= end:
            continue
        try:
            row = run(cell, folder.resolve(), base.resolve(), end - time.monotonic())
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
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
