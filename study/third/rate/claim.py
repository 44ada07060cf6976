"""Peak rates of each system in German, seed 1: the registered rule takes the fewest bits of help
pages.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from math import inf
from pathlib import Path

from study.third.cells import Cell, declared
from study.third.picture import picture
from study.third.results import TEXTS, Results, table

NAMES = {
    ("lora", False): "LoRA",
    ("lora", True): "LoRA, its own tokens",
    ("bl_base", False): "embeddings alone",
    ("full", False): "all weights",
}
CELLS = list(declared(Path(__file__).parent))
results = Results()


def bits(cell: Cell, text: str) -> float:
    return results.each(cell, text)[1]


def tables() -> Iterator[str]:
    yield table(
        "what trains, German, 33 %, seed 1 | peak rate | manual | help | English | English, less "
        "than untouched",
        rows(),
    )


def rows() -> Iterator[str]:
    margin = results.margin("en.manual", others=inf)
    for (system, old), cells in groupby(CELLS, lambda cell: (cell.system, cell.old)):
        of = list(cells)
        best = min(of, key=lambda cell: bits(cell, "help"))
        for cell in of:
            change = results.before["en.manual"] - bits(cell, "en.manual")
            told = " | ".join(f"{bits(cell, text):.3f}" for text in TEXTS)
            named = f"{NAMES[system, old]}{', chosen' * (cell == best)}"
            yield (
                f"{named} | {cell.rate:g} | {told} | "
                f"{change:+.3f}{'' if abs(change) > margin else ' (level)'}"
            )


def drawing() -> str:
    curves = {
        name: [
            (
                bits(cell, "en.manual") - results.before["en.manual"],
                results.before["de.manual"] - bits(cell, "manual"),
            )
            for cell in CELLS
            if cell == replace(cell, system=system, old=old)
        ]
        for (system, old), name in NAMES.items()
    }
    title = "German gained against English lost, at three peak rates of each system"
    return picture(title, "bits per byte of English lost", "bits per byte of German gained", curves)
