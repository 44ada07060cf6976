#!/usr/bin/env python3
"""Write the tables and the picture of the study from the scores of its runs.

    python study/tables.py [FOLDER]

FOLDER (study/) has scores.json.xz, and takes tables.md and score_against_compute.svg. Of a folder of finished runs, as
runs/study after `bash study/run.sh`, the scores are gathered first.
"""

import argparse
import json
import lzma
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import atomic_write, read_json
from ds_minimodel.results.curves import Row
from ds_minimodel.results.paired import UnitCurves, unit_curves
from ds_minimodel.results.render import EMPTY, Block, Cell, Heading, Table, to_markdown
from ds_minimodel.results.units import name_of, v100_unit
from study.picture import Curves, picture

SCORES, PAGE, PICTURE = "scores.json.xz", "tables.md", "score_against_compute.svg"
SOURCE, TARGETS, TASKS = "en", ("de", "fr", "ru", "el"), ("topic", "section", "match")
CELLS = [(task, language) for task in TASKS for language in TARGETS]
SYSTEMS = ("bl_base", "bl_small", "minipost", "minijoint")
OTHER_BODY = "random"
# What the tables call a run, where it is not called as its workdir.
LABELS = {"other-seed-1": OTHER_BODY, "german": "pilot", "other-german": f"pilot, {OTHER_BODY}", "chosen": "batch"}


def variant_of(run: str, system: str) -> str:
    """What the tables call a system of a run: `seed-1` and `seed-11` are the study, the others differ from it."""
    if run.startswith("seed-"):
        return system
    if run.startswith("depth-"):
        return f"{system} N={run.removeprefix('depth-')}"
    return f"{system} ({LABELS.get(run, run.removeprefix('try-'))})"


# --- the scores


def gather(work: Path) -> None:
    """Write the scores of all finished runs in a folder to its scores.json.xz, seeds as (pretraining, finetuning)."""
    rows = []
    for path in sorted(work.glob("*/report/run.json")):
        run: Any = read_json(path)
        for row in run["scores"]:
            rows.append({"run": path.parents[1].name, **row, "seed": [run["recipe"]["seed"], row["seed"]]})
    with atomic_write(work / SCORES) as file:
        file.write(lzma.compress(json.dumps(rows, separators=(",", ":")).encode()))


def read_scores(folder: Path) -> list[Row]:
    """Score rows of all runs in the terms of results/curves.py, each system called as its variant."""
    path = folder / SCORES
    if not path.is_file():
        raise UserError(f"{path}: no such file, and no finished run beside it; make one with `bash study/run.sh`")
    rows = json.loads(lzma.decompress(path.read_bytes()))
    return [{**row, "system": variant_of(row["run"], row["system"]), "seed": tuple(row["seed"])} for row in rows]


# --- the tables


def variants(curves: UnitCurves, pattern: str) -> list[str]:
    """The variants whose names match a pattern, in the order of the runs."""
    return [name for name in curves if re.fullmatch(pattern, name)]


def mean_score(curves: UnitCurves, variant: str, cell: tuple[str, str]) -> float | None:
    """A cell's final score, mean over its units."""
    units = curves[variant].get(cell)
    return statistics.fmean(points[-1].mean for points in units.values()) if units else None


def finals_table(title: str, curves: UnitCurves, names: Iterable[str], notes: Sequence[str] = ()) -> Table:
    """Final scores of variants in all cells, and their mean where all are there."""
    rows = []
    for name in names:
        scores = [mean_score(curves, name, cell) for cell in CELLS]
        there = [score for score in scores if score is not None]
        mean = Cell(f"{statistics.fmean(there):.1f}") if len(there) == len(CELLS) else EMPTY
        rows.append([Cell(name_of(name)), *(EMPTY if s is None else Cell(f"{s:.1f}") for s in scores), mean])
    return Table(title, ["", *(f"{task} {language}" for task, language in CELLS), "mean"], rows, notes=notes)


def averages(curves: UnitCurves, names: Sequence[str]) -> tuple[Curves, str]:
    """The curves of variants, means over all cells and seeds, and the unit of their compute."""
    found: dict[str, list[tuple[float, float]]] = {}
    unit = v100_unit(
        max(points[-1].eflops for name in names for units in curves[name].values() for points in units.values())
    )
    for name in names:
        all_points = [points for cell in CELLS for points in curves[name][cell].values()]
        found[name] = [
            (at_step[0].eflops * unit.per_eflop, statistics.fmean(point.mean for point in at_step))
            for at_step in zip(*all_points, strict=True)
        ]
    return found, unit.name


def blocks(rows: Sequence[Row]) -> list[Block]:
    """All tables in reading order."""
    curves = unit_curves(row for row in rows if row["language"] != SOURCE)
    others = [*variants(curves, ".*little.*"), *variants(curves, ".* N=.*")]
    search = variants(curves, r"multijoint \(.*") + variants(curves, r"bl_base \(fast.*")
    return [
        Heading("Final scores"),
        finals_table("The four systems, two pretraining seeds", curves, SYSTEMS),
        finals_table("Over the body `random`, one pretraining seed", curves, variants(curves, rf".*\({OTHER_BODY}\)")),
        finals_table("A tenth of the text, and depths of the mini-model, one pretraining seed", curves, others),
        finals_table("The search for a cheap step 2, one pretraining seed", curves, search),
    ]


def write(folder: Path) -> None:
    """Write the tables and the picture of a folder."""
    if any(folder.glob("*/report/run.json")):
        gather(folder)
    rows = read_scores(folder)
    page = to_markdown("Tables of the study", blocks(rows))
    curves = unit_curves(row for row in rows if row["language"] != SOURCE)
    drawn = picture(*averages(curves, SYSTEMS))
    for name, text in ((PAGE, page), (PICTURE, drawn)):
        with atomic_write(folder / name, "w") as file:
            file.write(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "study", metavar="FOLDER")
    options = parser.parse_args()
    return exit_code(lambda: write(options.folder))


if __name__ == "__main__":
    sys.exit(main())
