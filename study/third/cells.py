"""The cells of the third study: every one is a run of the package, its scores a line of
results.jsonl.

    python -m study.third.cells FOLDER [--thousands N] [WORD…]

FOLDER has texts.py's files and `base` (run.sh). Cells are those that the
claims' YAML names, a claim after the other; with words those of the claims so called, and those
whose names have one of the words. What is in FOLDER/results.jsonl is not run again, a run that was
interrupted goes on, and several processes share the cells. All the compute, a share of 1, is a pass
of BL_BASE over N thousand tokens.
"""

import argparse
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ds_minimodel.api import bits_per_byte, load_recipe, recipe_costs
from ds_minimodel.config.reading import read_yaml
from ds_minimodel.training.config import WARM_UP

RECIPE = Path(__file__).with_name("study.yaml").resolve()
LANGUAGES = "de", "el", "tr"
PIECES = {"de": 2000, "el": 2000, "tr": 1000}  # as `fertility` proposes
# Positions of old pieces that have as many bytes as 128 with new ones, by the table of `fertility`.
OLD_LENGTHS = {"de": 217, "el": 416, "tr": 233}
OLD = 6  # new pieces, the fewest that a recipe takes
SEEDS = 1, 2, 3
THIRD = 1 / 3
CLAIMS = (
    "lora rate replay strength schedule old-tokens vocabulary ways penalty masked written".split()
)
STEPS = "corpus", "tokenizer", "prepare", "pretrain", "build-mini", "adapt"


@dataclass(frozen=True)
class Cell:
    """A run. share: of all the compute. old: over the base's own tokens. replay: share of English,
    or with own of what the base writes by itself. pieces: new tokens, 0 for PIECES.
    """

    language: str
    system: str
    share: float
    rate: float
    seed: int = 1
    old: bool = False
    replay: float = 0.0
    own: bool = False
    pieces: int = 0
    vocabulary: str = "extend"
    schedule: str = "linear"

    @property
    def name(self) -> str:
        parts = [
            self.language,
            self.system,
            f"{self.share:.3f}",
            f"{self.rate:g}",
            f"seed{self.seed}",
        ]
        parts += ["old"] * self.old + ["own-" * self.own + f"replay{self.replay:g}"] * (
            self.replay > 0
        )
        parts += [f"{self.vocabulary}{self.pieces}"] * (self.pieces > 0)
        parts += [self.schedule] * (self.schedule != "linear")
        return "-".join(parts)

    def overrides(self, steps: int) -> list[str]:
        """What the recipe of the cell sets."""
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
            *(
                ["adapt.schedule=wsd", f"adapt.warmup_steps={round(WARM_UP * steps)}"]
                if self.schedule == "constant"
                else []
            ),
            f"adapt.replay={self.replay:g}",
            f"adapt.replay_from={'base' if self.own else 'text'}",
            f"adapt.seq_length={OLD_LENGTHS[self.language] if self.old else 128}",
        ]


class Study:
    def __init__(self, folder: Path, thousands: int):
        self.folder, self.thousands, self.results = folder, thousands, folder / "results.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        return read(self.results) if self.results.exists() else []

    def flops(self, cell: Cell) -> float:
        """EFLOPs that a step of the cell executes."""
        found = recipe_costs(load_recipe(RECIPE, cell.overrides(1000)))
        (cost,) = (row["executed_eflops"] for row in found if row["step"] == "adapt")
        return cost / 1000

    def steps(self, cell: Cell) -> int:
        whole = Cell(cell.language, "bl_base", 1.0, 1e-3)
        budget = cell.share * self.flops(whole) * self.thousands * 1000 / (8 * 128)
        return max(1, round(budget / self.flops(cell)))

    def has(self, name: str) -> bool:
        return any(row["cell"] == name for row in self.rows())

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Whether a row is this process's to make: it is not there, and no other process is at
        it.
        """
        folder = self.folder / "cells" / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "cell.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
            except BlockingIOError:
                is_free = False
            yield is_free and not self.has(name)

    def run(self, cell: Cell) -> None:
        """Make a cell and add its scores."""
        with self.alone(cell.name) as is_ours:
            if not is_ours:
                return
            workdir = self.folder / "cells" / cell.name
            self.share_text(cell, workdir)
            steps = self.steps(cell)
            print(f"{cell.name}: {steps} steps", flush=True)
            for step in STEPS:
                command = [
                    sys.executable,
                    "-P",
                    "-m",
                    "ds_minimodel",
                    step,
                    str(RECIPE),
                    *cell.overrides(steps),
                ]
                if step != "build-mini" or cell.system == "minipost":
                    subprocess.run(command, cwd=self.folder, check=True)
            pack = pack_of(workdir, cell.system, cell.language)
            texts = [f"{cell.language}.manual", f"{cell.language}.help", "en.manual"]
            row = {
                "cell": cell.name,
                **vars(cell),
                "steps": steps,
                "eflops": steps * self.flops(cell),
            }
            self.add({**row, **bits_of(pack, texts)})
            shutil.rmtree(pack.parent / "snapshots")  # a LoRA's are 400 MB each

    def add(self, row: dict[str, Any]) -> None:
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def untouched(self) -> None:
        """Add the row "untouched": the body as it came, with its own pieces."""
        with self.alone("untouched") as is_ours:
            if is_ours:
                texts = [
                    f"{language}.{kind}"
                    for language in (*LANGUAGES, "en")
                    for kind in ("manual", "help")
                ]
                self.add({"cell": "untouched", **bits_of(Path("base"), texts)})

    def share_text(self, cell: Cell, workdir: Path) -> None:
        """Take the body, vocabulary and tokens from a former cell of the same."""
        kind = cell.old, cell.pieces, cell.vocabulary
        for row in self.rows():
            former = self.folder / "cells" / row["cell"]
            if (
                row.get("language") == cell.language
                and (row["old"], row["pieces"], row["vocabulary"]) == kind
            ):
                for name in ("corpus", "tokenizer", "tokens", "pretrain"):
                    if not (workdir / name).exists() and (former / name).exists():
                        shutil.copytree(former / name, workdir / name, copy_function=os.link)
                return


def pack_of(workdir: Path, system: str, language: str) -> Path:
    return workdir / "adapt" / system / language / "pack"


def bits_of(pack: Path, texts: list[str]) -> dict[str, dict[str, float]]:
    """Bits a byte of held-out texts, and bytes a token, by the body with `pack`: {text: …}."""
    found = bits_per_byte(
        "base", {"pack": pack}, [f"{text}.txt" for text in texts], precision="auto"
    )
    rows = list(zip(texts, found, strict=True))
    return {
        kind: {text: getattr(row, kind) for text, row in rows}
        for kind in ("bits_per_byte", "bytes_per_token")
    }


def declared(claim: Path) -> Iterator[Cell]:
    """The cells of a claim's folder: each entry of its YAML is the product of its lists. Shares are
    fractions.
    """
    for entry in read_yaml((claim / "claim.yaml").read_text("utf-8"))[0].get("cells", []):
        lists = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
        for values in itertools.product(*lists.values()):
            cell = dict(zip(lists, values, strict=True))
            share, rate = float(Fraction(str(cell["share"]))), float(cell["rate"])
            yield Cell(**{**cell, "share": share, "rate": rate})


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--thousands", type=int, default=512)
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_intermixed_args()
    os.chdir(arguments.folder)  # the recipe's paths are of there
    study = Study(Path.cwd(), arguments.thousands)
    study.untouched()
    for claim in CLAIMS:
        for cell in declared(Path(__file__).parent / claim):
            if (
                not arguments.words
                or claim in arguments.words
                or any(word in cell.name for word in arguments.words)
            ):
                study.run(cell)


if __name__ == "__main__":
    main()
