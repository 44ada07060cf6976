"""German added to a small ModernBERT of this package's: bits per byte of hidden words, each system
at its best rate.
"""

from collections.abc import Iterator
from pathlib import Path

from study.third.cells import read
from study.third.picture import picture
from study.third.results import Row, percent, table

ROWS = read(Path(__file__).with_name("results.jsonl"))
NAMES = {
    "full": "all weights",
    "lora": "LoRA",
    "minipost": "MiniPost, 2 + 1 of 6 layers",
    "bl_base": "embeddings alone",
}
GERMAN, ENGLISH = "bits_per_hidden_byte", "on_source_bits_per_hidden_byte"
BEFORE = ROWS[0]["source_pack_bits_per_hidden_byte"]


def best() -> dict[tuple[str, float], Row]:
    """{(system, share): the row of the rate with the fewest bits}."""
    return {
        (row["system"], row["share"]): row for row in sorted(ROWS, key=lambda one: -one[GERMAN])
    }


def tables() -> Iterator[str]:
    columns = (
        "what trains | compute | rates tried | best | steps | German | % of embeddings' gain with "
        "100 % | English"
    )
    yield table(columns, rows())


def rows() -> Iterator[str]:
    found = best()
    yield f"untouched | | | | | {BEFORE:.3f} | 0 | "
    for (system, share), row in sorted(found.items(), key=lambda one: (one[0][1], one[1][GERMAN])):
        rates = ", ".join(
            f"{one['rate']:g}" for one in ROWS if (one["system"], one["share"]) == (system, share)
        )
        kept = 100 * (BEFORE - row[GERMAN]) / (BEFORE - found["bl_base", 1.0][GERMAN])
        told = (
            f"{row['rate']:g} | {row['steps']} | {row[GERMAN]:.3f} | {kept:.1f} | "
            f"{row[ENGLISH]:.3f}"
        )
        yield f"{NAMES[system]} | {percent(share)} | {rates} | {told}"


def drawing() -> str:
    curves = {
        name: sorted(
            (row[ENGLISH], BEFORE - row[GERMAN])
            for row in ROWS
            if row["system"] == system and row["share"] < 1
        )
        for system, name in NAMES.items()
    }
    title = "German gained against bits of English, at three rates of each system"
    return picture(
        title,
        "bits per byte of English hidden words",
        "bits per byte of German hidden words gained",
        curves,
    )
