"""Part B, item 2: step 2 of the quickstart's four systems from overlap and from aligned rows.

    python -m study.fifth.systems FOLDER SAMPLE [--minutes M] [WORD…]

FOLDER has the pairs (texts.py), SAMPLE is what `ds-minimodel fetch-sample --languages de,el` wrote.
The first cell of a seed trains its bodies, and finetunes them, for the others, too.
"""

import os
import shutil
from pathlib import Path

from ds_minimodel.api import load_recipe
from ds_minimodel.pipeline.layout import LOCK, WorkdirLayout
from study.fifth.cells import Cell, write_pairs
from study.fifth.lines import call, main
from study.fifth.results import Row, curve_of, learned_of
from study.fifth.untested import topic_tests, untested

RESULTS = Path(__file__).with_name("systems.jsonl")
LANGUAGE = "de"
TASK = "topic"
SNAPSHOTS = [38, 75, 150]  # beside 0 and the last of 300 steps
BODY_STEPS = "corpus", "tokenizer", "prepare", "pretrain", "build-mini", "finetune"
OTHER = "programs"  # pages of GIMP's and GNOME's help


def declared() -> list[Cell]:
    cells = []
    for seed in (1, 2, 3):
        cells.append(Cell(LANGUAGE, "text", 0, draw=seed, arm="overlap", seed=seed))
        cells += [Cell(LANGUAGE, pairs=pairs, draw=seed, seed=seed) for pairs in (5000, 25_000)]
        cells.append(Cell(LANGUAGE, OTHER, 0, draw=seed, seed=seed))
    return cells


def run(cell: Cell, end: float, folder: Path, sample: Path) -> Row:
    body = folder / "systems" / f"body-{cell.seed}"
    for step in BODY_STEPS:
        call(end, step, "quickstart", *settings(cell.seed, sample, body))
    out = folder / "systems" / cell.name
    if not out.exists():
        part = out.with_name(f"{out.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        ignored = shutil.ignore_patterns(LOCK)
        shutil.copytree(body, part, copy_function=os.link, ignore=ignored)
        part.rename(out)
    chosen = settings(cell.seed, sample, out)
    if cell.arm == "aligned":
        texts = folder / "systems/pairs"
        untested(folder / LANGUAGE, topic_tests(sample, LANGUAGE), texts)
        paths = [texts / "gimp.tsv", texts / "gnome-test.tsv"]
        if cell.kind != OTHER:
            paths = write_pairs(cell, texts, out)
        files = ", ".join(map(str, paths))
        chosen += [f"data.pairs={{{LANGUAGE}: [{files}]}}", "adapt.initialisation=aligned"]
    for step in ("corpus", "adapt", "evaluate"):
        call(end, step, "quickstart", *chosen)
    recipe = load_recipe("quickstart", chosen)
    return {
        "learned": learned_of(WorkdirLayout(out), LANGUAGE) if cell.arm == "aligned" else {},
        "systems": {system.name: curve_of(recipe, system) for system in recipe.chosen_systems},
    }


def settings(seed: int, sample: Path, workdir: Path) -> list[str]:
    """What the quickstart's recipe is given."""
    tasks = sample / "tasks" / TASK
    texts = (f"{code}: {sample / f'text/{code}.txt'}" for code in ("en", LANGUAGE))
    tests = (f"{code}: {tasks / f'test.{code}.jsonl'}" for code in ("en", LANGUAGE))
    return [
        f"workdir={workdir}",
        f"seed={seed}",
        f"data.text={{{', '.join(texts)}}}",
        f"finetune.tasks.{TASK}.train={tasks / 'train.en.jsonl'}",
        f"finetune.tasks.{TASK}.dev={tasks / 'dev.en.jsonl'}",
        f"finetune.tasks.{TASK}.test={{{', '.join(tests)}}}",
        "adapt.snapshot_every=null",
        f"adapt.snapshot_at={SNAPSHOTS}",
    ]


if __name__ == "__main__":
    main(RESULTS, declared(), run, "folder", "sample")
