#!/usr/bin/env python3
"""Write the tables and the picture of the study from the scores of its runs.

    python study/tables.py [FOLDER]

FOLDER (study/) has scores.json.xz, and takes tables.md and score_against_compute.svg. Of a folder of finished runs, as
runs/study after `bash study/run.sh`, the scores are gathered first.
"""

import argparse
import itertools
import json
import lzma
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.common.errors import UserError, exit_code
from ds_minimodel.common.files import atomic_write
from ds_minimodel.report.curves import SCORES_FILE, Row
from ds_minimodel.report.render import EMPTY, Block, Cell, Heading, Table, to_markdown
from study.paired import (
    BootstrapEstimate,
    Pair,
    UnitCurves,
    by_task,
    difference,
    difference_label,
    differences_table,
    interval_cell,
    name_of,
    pairs_of,
    scores_of,
    share,
    speedup,
    speedups_table,
    unit_curves,
)
from study.picture import averages, picture

SCORES, PAGE, PICTURE = "scores.json.xz", "tables.md", "score_against_compute.svg"
SOURCE, TARGETS, TASKS = "en", ("de", "fr", "ru", "el"), ("topic", "section", "match")
CELLS = [(task, language) for task in TASKS for language in TARGETS]
SYSTEMS = ("bl_base", "bl_small", "minipost", "minijoint")
OTHER_BODY = "random"
# What the tables call a run, where it is not called as its workdir.
LABELS = {"other-seed-1": OTHER_BODY, "german": "pilot", "other-german": f"pilot, {OTHER_BODY}"}


def variant_of(run: str, system: str) -> str:
    """What the tables call a system of a run: `seed-1` and `seed-11` are the study, the others differ from it."""
    if run.startswith("seed-"):
        return system
    if run.startswith("depth-"):
        return f"{system} N={run.removeprefix('depth-')}"
    return f"{system} ({LABELS.get(run, run.removeprefix('try-'))})"


# --- the scores


def gather(work: Path) -> None:
    """Write the scores of all finished runs in a folder to its scores.json.xz."""
    with atomic_write(work / SCORES) as file:
        file.write(lzma.compress(json.dumps(scores_of(work), separators=(",", ":")).encode()))


def read_scores(folder: Path) -> list[Row]:
    """Score rows of all runs in the terms of report/curves.py, each system called as its variant."""
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
    return statistics.fmean(points[-1].score for points in units.values()) if units else None


def finals_table(title: str, curves: UnitCurves, names: Iterable[str]) -> Table:
    """Final scores of variants in all cells, and their mean where all are there."""
    rows = []
    for name in names:
        scores = [mean_score(curves, name, cell) for cell in CELLS]
        there = [score for score in scores if score is not None]
        mean = Cell(f"{statistics.fmean(there):.1f}") if len(there) == len(CELLS) else EMPTY
        rows.append([Cell(name_of(name)), *(EMPTY if s is None else Cell(f"{s:.1f}") for s in scores), mean])
    return Table(title, ["", *(f"{task} {language}" for task, language in CELLS), "mean"], rows)


class Claim(NamedTuple):
    """A claim of registration.md: `number` of two variants is at least (or at most) `bound`; its registered verdict."""

    hypothesis: str
    number: Callable[[Sequence[Pair]], BootstrapEstimate | None]
    one: str
    other: str
    bound: float
    registered: str
    in_source: bool = False

    def label(self) -> str:
        """What the claim is about."""
        if self.number is difference:
            return difference_label(self.one, self.other) + (", English" if self.in_source else "")
        return f"{self.number.__name__} of {name_of(self.one)} against {name_of(self.other)}"

    def verdict(self, number: BootstrapEstimate) -> str:
        """By the whole interval."""
        if number.low >= self.bound:
            return "confirmed"
        return "refuted" if number.high < self.bound else "open"


CLAIMS = [
    Claim("H1", share, "minijoint", "bl_base", 0.95, "0.910 [0.831, 0.981], open"),
    Claim("H2", difference, "minijoint", "bl_small", 0, "-3.25 [-5.48, -1.24], refuted"),
    Claim("H3", share, "minipost", "bl_base", 0.95, "1.021 [0.991, 1.075], confirmed"),
    Claim("H4", speedup, "minijoint", "bl_base", 2, "12.54 [0.63, 13.89], open"),
    Claim("H4", speedup, "minipost", "bl_base", 1.4, "1.76 [1.53, 3.27], confirmed"),
    Claim("H5", difference, "minijoint", "bl_base", -1, "+0.41 [-0.41, +1.66], confirmed", in_source=True),
    Claim("H6", difference, "multijoint N=3", "multijoint N=1", -1, "+1.84 [-0.67, +4.53], confirmed"),
    Claim("H6", difference, "multijoint N=6", "multijoint N=3", -1, "+0.28 [-0.41, +0.98], confirmed"),
    Claim("H6", difference, "multijoint N=9", "multijoint N=6", -1, "+0.15 [-0.49, +0.77], confirmed"),
    Claim("H7", share, "minijoint (little)", "bl_base (little)", 0.95, "0.880 [0.750, 0.977], open"),
    Claim("H7", difference, "minijoint (little)", "bl_small (little)", 0, "-2.71 [-5.18, -1.01], refuted"),
    Claim("H7", share, "minipost (little)", "bl_base (little)", 0.95, "1.008 [0.961, 1.065], confirmed"),
]


def verdicts_table(curves: UnitCurves, in_source: UnitCurves) -> Table:
    """The registered verdicts, and what they would be by the rules of README.md."""
    rows = []
    for claim in CLAIMS:
        number = claim.number(pairs_of(in_source if claim.in_source else curves, claim.one, claim.other))
        assert number, claim
        cell = interval_cell(number, "{:+.2f}" if claim.number is difference else "{:.3f}")
        row = [claim.hypothesis, claim.label(), f"≥ {claim.bound:g}", claim.registered, f"{cell.text} {cell.detail}"]
        rows.append([Cell(text) for text in (*row, claim.verdict(number))])
    columns = ["", "what", "claim", "as registered", "pretraining seeds drawn first", "would be"]
    notes = [
        "The registered rule draws cells, then units, and takes speedups as the mean of ratios by cell and seed. The "
        "other averages curves over cells first, and draws pretraining seeds first. Verdicts are the registered ones."
    ]
    return Table("Verdicts, and what they would be by the rules that hold since", columns, rows, notes=notes)


def of_seed(curves: UnitCurves, seed: int) -> UnitCurves:
    """The units of one pretraining seed."""
    return {
        variant: {
            cell: {unit: points for unit, points in units.items() if unit[0] == seed} for cell, units in cells.items()
        }
        for variant, cells in curves.items()
    }


def seeds_table(curves: UnitCurves, in_source: UnitCurves) -> Table:
    """Differences between the systems for each pretraining seed, in the targets and in English."""
    rows = []
    for language, those in (("targets", curves), ("English", in_source)):
        for one, other in itertools.combinations(("minijoint", "minipost", "bl_small", "bl_base"), 2):
            if language == "English" and "minipost" in (one, other):
                continue  # its English model is BL_BASE's
            numbers = [difference(pairs_of(by_seed, one, other)) for by_seed in (of_seed(those, 1), of_seed(those, 11))]
            cells = [interval_cell(number, "{:+.2f}") for number in (*numbers, difference(pairs_of(those, one, other)))]
            rows.append([Cell(f"{difference_label(one, other)}, {language}"), *cells])
    return Table("Differences by pretraining seed", ["", "seed 1", "seed 11", "both"], rows)


def bodies_table(curves: UnitCurves) -> Table:
    """What the choice of the body hung on: BL_BASE in German after step 2 over both, by finetuning seed."""
    rows = []
    for seed in (1, 2, 3):
        scores = [
            [curves[name][task, "de"][1, seed][-1].score for task in TASKS]
            for name in ("bl_base (pilot)", f"bl_base (pilot, {OTHER_BODY})")
        ]
        means = [statistics.fmean(of_body) for of_body in scores]
        texts = [f"{mean:.1f}" for mean in means] + [f"{means[0] - means[1]:+.1f}"]
        rows.append([Cell(str(seed)), *map(Cell, texts)])
    columns = ["finetuning seed", "neighbours", OTHER_BODY, "difference"]
    return Table("The choice of the body: BL_BASE in German, mean over tasks", columns, rows)


def baseline_of(curves: UnitCurves, variant: str) -> str:
    """The BL_BASE of a variant's own run, else the study's."""
    own = f"bl_base ({variant.partition(' (')[2]}"
    return own if own in curves and own != variant else "bl_base"


def blocks(rows: Sequence[Row]) -> list[Block]:
    """All tables in reading order."""
    curves = unit_curves(row for row in rows if row["language"] != SOURCE)
    in_source = unit_curves(row for row in rows if row["language"] == SOURCE)
    other_body, little = ([f"{system} ({label})" for system in SYSTEMS] for label in (OTHER_BODY, "little"))
    depths = variants(curves, ".* N=.*")
    search = variants(curves, r"multijoint \(.*") + variants(curves, r"bl_base \(fast.*")
    over_base = [*SYSTEMS[1:], *other_body[1:], *little[1:], *depths, *search]
    with_base = [(one, baseline_of(curves, one)) for one in over_base]
    by_start = [(f"multijoint ({start})", "multijoint N=1") for start in ("ofa", "wechsel", "focus")]
    of_ofa = [f"multijoint ({name})" for name in ("fast", "fast-deep")] + ["bl_base (fast-base)"]
    within = [pair for names in (SYSTEMS, other_body, little) for pair in itertools.combinations(reversed(names), 2)]
    return [
        Heading("Verdicts"),
        verdicts_table(curves, in_source),
        seeds_table(curves, in_source),
        bodies_table(curves),
        Heading("Speedups and differences"),
        speedups_table(by_task(curves, with_base, speedup), curves),
        differences_table("Differences within a body, in points", by_task(curves, within)),
        differences_table("Differences by how embeddings begin; N=1 begins with overlap", by_task(curves, by_start)),
        differences_table("Begun with OFA", by_task(curves, itertools.combinations(reversed(of_ofa), 2))),
        Heading("Final scores"),
        finals_table("The four systems, two pretraining seeds", curves, SYSTEMS),
        finals_table(f"Over the body {OTHER_BODY}, one pretraining seed", curves, other_body),
        finals_table("A tenth of the text, and depths of the mini-model, one seed", curves, little + depths),
        finals_table("The search for a cheap step 2, one pretraining seed", curves, search),
    ]


def write(folder: Path) -> None:
    """Write the tables and the picture of a folder."""
    if any(folder.glob(f"*/report/{SCORES_FILE}")):
        gather(folder)
    rows = read_scores(folder)
    page = to_markdown("Tables of the study", blocks(rows))
    curves = unit_curves(row for row in rows if row["language"] != SOURCE)
    drawn = picture(*averages(curves, SYSTEMS), "score, mean over languages and tasks (%)")
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
