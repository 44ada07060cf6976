"""The main part of the third study: every cell is a run of the package, its scores a line of results.jsonl.

    python study/third/cells.py FOLDER [--thousands N] [WORD…]

FOLDER has texts.py's files, those of choices.py and `base` (run.sh). Cells run in the order of registration.md; with
words those alone whose names have one of them. What is in FOLDER/results.jsonl is not run again, a run that was
interrupted goes on, and several processes share the cells. "In full" is a pass of BL_BASE over N thousand tokens.
"""

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_minimodel.api import load_recipe, recipe_costs

RECIPE = Path(__file__).with_name("study.yaml").resolve()
LANGUAGES = "de", "el", "tr"
PIECES = {"de": 2000, "el": 2000, "tr": 1000}  # as `fertility` proposes
# Positions of old pieces that have as many bytes as 128 with new ones, by the table of `fertility`.
OLD_LENGTHS = {"de": 217, "el": 416, "tr": 233}
OLD = 6  # new pieces, the fewest that a recipe takes
RATES = {"bl_base": (2e-3, 4e-3, 8e-3), "lora": (1e-3, 2e-3, 4e-3), "full": (1e-4, 2e-4, 4e-4)}
SEEDS = 1, 2, 3
THIRD = 1 / 3


@dataclass(frozen=True)
class Cell:
    """A run. share: of the FLOPs of BL_BASE in full. old: over the base's own pieces. replay: share of English."""

    language: str
    system: str
    share: float
    rate: float
    seed: int = 1
    old: bool = False
    replay: float = 0.0
    pieces: int = 0
    vocabulary: str = "extend"

    @property
    def name(self) -> str:
        parts = [self.language, self.system, f"{self.share:.3f}", f"{self.rate:g}", f"seed{self.seed}"]
        parts += ["old"] * self.old + [f"replay{self.replay:g}"] * (self.replay > 0)
        parts += [f"{self.vocabulary}{self.pieces}"] * (self.pieces > 0)
        return "-".join(parts)

    def overrides(self, steps: int) -> list[str]:
        """What the recipe of the cell sets."""
        tests = {
            "help": f"{self.language}.help.txt",
            "manual": f"{self.language}.manual.txt",
            "choices": f"{self.language}.choices.jsonl",
        }
        pieces = OLD if self.old else self.pieces or PIECES[self.language]
        return [
            f"workdir=cells/{self.name}",
            f"seed={self.seed}",
            f"systems=[{self.system}]",
            f"languages.targets=[{self.language}]",
            f"tokenizer={{vocabulary: {self.vocabulary}, vocab_size: {pieces}}}",
            f"data.text={{en: en.train.txt, {self.language}: {self.language}.train.txt}}",
            f"adapt.steps={steps}",
            f"build_mini.steps={steps}",
            f"adapt.lr={self.rate:g}",
            f"adapt.replay={self.replay:g}",
            f"adapt.seq_length={OLD_LENGTHS[self.language] if self.old else 128}",
            *(
                f"finetune.tasks.{task}.test={{en: {test.replace(self.language, 'en', 1)}, {self.language}: {test}}}"
                for task, test in tests.items()
            ),
        ]


class Study:
    def __init__(self, folder: Path, thousands: int):
        self.folder, self.thousands, self.results = folder, thousands, folder / "results.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text("utf-8").splitlines()]

    def flops(self, cell: Cell) -> float:
        """EFLOPs that a step of the cell executes."""
        found = recipe_costs(load_recipe(RECIPE, cell.overrides(1000)))
        (cost,) = (row["executed_eflops"] for row in found if row["step"] == "adapt")
        return cost / 1000

    def steps(self, cell: Cell) -> int:
        whole = Cell(cell.language, "bl_base", 1.0, 1e-3)
        budget = cell.share * self.flops(whole) * self.thousands * 1000 / (8 * 128)
        return max(1, round(budget / self.flops(cell)))

    def run(self, cell: Cell) -> None:
        """Make a cell and add its scores; a cell that another process makes is left to it."""
        if any(row["cell"] == cell.name for row in self.rows()):
            return
        workdir = self.folder / "cells" / cell.name
        workdir.mkdir(parents=True, exist_ok=True)
        with (workdir / "cell.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            self.share_text(cell, workdir)
            steps, began = self.steps(cell), time.time()
            print(f"{cell.name}: {steps} steps", flush=True)
            command = [sys.executable, "-P", "-m", "ds_minimodel", "run", str(RECIPE), *cell.overrides(steps)]
            subprocess.run(command, cwd=self.folder, check=True)
            row = {"cell": cell.name, **vars(cell), "steps": steps, "seconds": time.time() - began}
            row["eflops"] = steps * self.flops(cell)
            with self.results.open("a") as file:
                file.write("".join(json.dumps({**row, **scores}) + "\n" for scores in scores_of(workdir)))
            shutil.rmtree(workdir / "adapt", ignore_errors=True)  # hundreds of megabytes

    def share_text(self, cell: Cell, workdir: Path) -> None:
        """Take vocabulary and tokens from a former cell of the same."""
        for other in sorted(self.folder.glob(f"cells/{cell.language}-*")):
            if other.name.endswith("old") == cell.old and not cell.pieces and (other / "tokens").exists():
                for name in ("tokenizer", "tokens", "pretrain"):
                    if not (workdir / name).exists() and (other / name).exists():
                        shutil.copytree(other / name, workdir / name)
                return


def scores_of(workdir: Path) -> Iterator[dict[str, Any]]:
    """The scores of a run: {"task", "scored", …}."""
    for path in sorted(workdir.glob("evaluate/*/*/*/seed-1/scores.json")):
        yield {"task": path.parts[-3], "scored": path.parts[-4], "scores": json.loads(path.read_text("utf-8"))}


def cells(rate_of: dict[str, float]) -> Iterator[Cell]:
    """All cells in the order of registration.md, from the rates of `rates`; what is dropped first comes last."""
    base, lora, full, old = (rate_of[name] for name in ("bl_base", "lora", "full", "lora-old"))
    for seed in SEEDS:
        for language in LANGUAGES:
            yield Cell(language, "lora", THIRD, lora, seed)
            yield Cell(language, "bl_base", THIRD, base, seed)
            yield Cell(language, "bl_base", 1.0, base, seed)
            if seed == 1:
                yield Cell(language, "full", THIRD, full)
                yield Cell(language, "lora", THIRD, old, old=True)
                yield Cell(language, "lora", THIRD, lora, replay=0.2)
                yield Cell(language, "minipost", THIRD, base)
    for language in LANGUAGES:
        for share in (1 / 8, 1 / 4, 1 / 2, 1.0):
            yield Cell(language, "lora", share, lora)
            if share < 1:
                yield Cell(language, "bl_base", share, base)
    for pieces, vocabulary in ((8000, "extend"), (16000, "extend"), (8000, "replace")):
        for language in ("de", "el"):
            yield Cell(language, "lora", THIRD, lora, pieces=pieces, vocabulary=vocabulary)
            yield Cell(language, "bl_base", 1.0, base, pieces=pieces, vocabulary=vocabulary)


def rates() -> dict[str, list[Cell]]:
    """The cells by which a system's rate is chosen, on German by a third: {name in `cells`: cells}."""
    found = {system: [Cell("de", system, THIRD, rate) for rate in grid] for system, grid in RATES.items()}
    found["lora-old"] = [Cell("de", "lora", THIRD, rate, old=True) for rate in RATES["lora"]]
    return found


def best_rates(study: Study) -> dict[str, float]:
    """The rate of each system with the fewest bits of German help that was held out, its cells run where missing."""
    chosen = {}
    for name, grid in rates().items():
        for cell in grid:
            study.run(cell)
        bits = {}
        for cell in grid:
            for row in study.rows():
                if row["cell"] == cell.name and (row["task"], row["scored"]) == ("help", "de"):
                    bits[cell.rate] = row["scores"]["bits_per_byte"]
        if len(bits) == len(grid):  # else another process is at work on the rest
            chosen[name] = min(bits, key=bits.__getitem__)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--thousands", type=int, default=512)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    study = Study(arguments.folder.resolve(), arguments.thousands)
    while len(chosen := best_rates(study)) < len(rates()):
        time.sleep(60)
    for cell in cells(chosen):
        if not arguments.words or any(word in cell.name for word in arguments.words):
            study.run(cell)


if __name__ == "__main__":
    main()
