"""The cells of the fifth study, part A, in the registered order: what each learns from and how."""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ds_minimodel.common.files import atomic_write

TESTS = "help", "gnome", "story"
SIZES = 300, 1000, 5000, 25_000
SEEN = "de", "el"  # in the pilot
UNSEEN = "hu", "tr", "eu", "ja"
ENTRIES = 30_000  # of a dictionary beside pairs
# What of each kind lies beside the pairs of LibreOffice's help; where a language lacks a file the
# kind is what is left.
BESIDE = {"help": (), "mixture": ("gimp", "dictionary"), "other": ("gimp", "dictionary")}
ARMS = {
    "aligned": ["--tokens", "0"],
    "means": ["--tokens", "0"],
    "trained": [],
    "means-trained": [],
    "mini-3+1": ["--mini", "3+1"],
    "mini-2+1": ["--mini", "2+1"],
    "lora": ["--train", "lora"],
}
RIVALS = "map", "all", "e5"  # which rivals.py runs


@dataclass(frozen=True)
class Cell:
    """A run. pairs: of LibreOffice's help that are given; extend holds a tenth of them out."""

    language: str
    kind: str = "help"
    pairs: int = SIZES[-1]
    draw: int = 1
    arm: str = "aligned"
    seed: int = 1

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


def declared() -> Iterator[Cell]:
    """All cells, in the registered order."""
    for languages in (SEEN, UNSEEN):
        for language in languages:
            yield from (Cell(language, pairs=pairs) for pairs in SIZES)
            if language != "eu":  # which has neither GIMP's help nor a dictionary
                yield Cell(language, "mixture")
                yield Cell(language, "dictionary", 0)
            if language not in ("tr", "eu"):
                yield Cell(language, "other", 0)
            yield from (Cell(language, pairs=pairs, arm="means") for pairs in (1000, 25_000))
    for language in (*SEEN, *UNSEEN):
        for draw in (2, 3):
            yield from (Cell(language, pairs=pairs, draw=draw) for pairs in SIZES[:-1])
        if language != "eu":
            yield from (Cell(language, "mixture", 1000, draw) for draw in (1, 2, 3))
    for pairs in (25_000, 1000):
        for seed in (1, 2, 3):
            for language in SEEN:
                for arm in ("trained", "means-trained"):
                    yield Cell(language, pairs=pairs, arm=arm, seed=seed)
    yield from (Cell(language, arm="trained") for language in UNSEEN)
    for arm in ("mini-3+1", "mini-2+1", "lora"):
        yield from (Cell(language, arm=arm) for language in SEEN)
    for language in (*SEEN, *UNSEEN):
        yield from (Cell(language, arm=arm) for arm in RIVALS if language in SEEN or arm != "all")


def lines_of(path: Path) -> list[str]:
    """The lines of a table below its header; none where there is no file."""
    return path.read_text("utf-8").splitlines(keepends=True)[1:] if path.is_file() else []


def write_pairs(cell: Cell, texts: Path, out: Path) -> list[Path]:
    """Write the files that a cell learns from."""
    wanted = {"help": cell.pairs, **dict.fromkeys(BESIDE.get(cell.kind, ()), ENTRIES)}
    if cell.kind == "dictionary":
        wanted = {"dictionary": len(lines_of(texts / "dictionary.tsv"))}
    paths = []
    for name, most in wanted.items():
        lines = lines_of(texts / f"{name}.tsv")
        drawn = random.Random(cell.draw).sample(lines, min(most, len(lines)))
        if drawn:
            paths.append(out / f"{name}.tsv")
            with atomic_write(paths[-1], "w") as file:
                file.writelines([f"en\t{cell.language}\n", *drawn])
    return paths
