"""The screen: ways to train the new token embeddings of Greek, each at its best rate, at equal
compute.
"""

from collections.abc import Iterator
from pathlib import Path

from study.third.cells import read
from study.third.picture import picture
from study.third.results import Results, Row, cell_of, percent, table

FULL = 512  # thousands of tokens of all the compute
ROWS = [row for row in read(Path(__file__).with_name("results.jsonl")) if row["language"] == "el"]
UNTOUCHED, START = (
    next(row["manual"] for row in ROWS if not row["thousands"] and row["way"] == way)
    for way in ("lora", "whole")
)
CURVES = {
    "whole": "whole body",
    "lora-rows": "LoRA, new tokens",
    "lora": "LoRA, own tokens",
    "short-4+2": "gradient of 6 layers",
    "forward": "no gradient",
}


def best() -> dict[tuple[str, float], Row]:
    """{(way, thousand tokens): the row of the rate with the fewest bits of the manual}."""
    found: dict[tuple[str, float], Row] = {}
    for row in ROWS:
        if row["thousands"]:
            key = row["way"], row["thousands"]
            found[key] = min(found.get(key, row), row, key=lambda one: one["manual"])
    return found


def gain(row: Row) -> float:
    """Percent of what the whole body gains with all the compute."""
    return 100 * (UNTOUCHED - row["manual"]) / (UNTOUCHED - best()["whole", FULL]["manual"])


def tables() -> Iterator[str]:
    columns = (
        "way | compute | rates tried | best | steps | manual | % of the gain with 100 % | English "
        "(12.5 %: 20 kB)"
    )
    yield table(columns, rows())
    yield table(
        "untouched | the start, means of old token embeddings", [f"{UNTOUCHED:.3f} | {START:.3f}"]
    )
    yield table("German, 12.5 %, seed 1 | manual | English", int8())


def rows() -> Iterator[str]:
    for (way, thousands), row in sorted(
        best().items(), key=lambda one: (one[0][1], one[1]["manual"])
    ):
        tried = sorted(
            one["rate"] for one in ROWS if (one["way"], one["thousands"]) == (way, thousands)
        )
        rates = ", ".join(f"{rate:g}" for rate in tried)
        told = (
            f"{row['rate']:g} | {row['steps']} | {row['manual']:.3f} | {gain(row):.0f} | "
            f"{row['english']:.4f}"
        )
        yield f"`{way}` | {percent(thousands / FULL)} | {rates} | {told}"


def int8() -> Iterator[str]:
    cell, rows = cell_of("de", "lora", 1 / 8), Results().rows
    for name, run in (("LoRA", cell.name), ("LoRA, frozen products in int8", f"{cell.name}-int8")):
        bits = rows[run]["bits_per_byte"]
        yield f"{name} | {bits['de.manual']:.3f} | {bits['en.manual']:.3f}"


def drawing() -> str:
    found = best()
    curves = {
        name: [
            (0.0, 0.0),
            *(
                (100 * size / FULL, gain(found[way, size]))
                for of, size in sorted(found)
                if of == way
            ),
        ]
        for way, name in CURVES.items()
    }
    title = "Gain by compute of ways to train new token embeddings, Greek"
    return picture(title, "compute, %", "gain, % of the whole body's with all the compute", curves)
