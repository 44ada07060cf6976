"""Arms of the divergence's weight beside the default, as registration.md judges them."""

from collections.abc import Iterator
from pathlib import Path

from ds_minimodel.config.reading import read_yaml
from study.fourth.screen import Row, gain, read, table
from study.third.picture import picture
from study.third.results import Results

ROWS = read(Path(__file__).parents[1] / "screen.jsonl")


def rows_of(claim: Path) -> list[Row]:
    """Of the arms that a claim's YAML names; the default is the line that others are judged by."""
    arms = read_yaml((claim / "claim.yaml").read_text("utf-8"))[0]["arms"]
    return [row for row in ROWS if row["arm"] in arms and row["strength"] in ("1", "0.75", "0.5")]


def lines(rows: list[Row], title: str) -> str:
    """Gain against the likeliest tokens that change, a curve for each arm over its strengths."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda one: float(one["strength"])):
        curves.setdefault(row["arm"], []).append((row["chat"]["changed"][0], gain(row)))
    return picture(
        title,
        "likeliest tokens of its own answers that change, %",
        "bits per byte of German gained",
        curves,
    )


def tables() -> Iterator[str]:
    yield "\n".join(table(rows_of(Path(__file__).parent)))
    yield (
        "By sigma of the third study two runs differ where their gains do by "
        f"{Results().margin('both'):.3f} bits."
    )


def drawing() -> str:
    return lines(
        rows_of(Path(__file__).parent),
        "German gained against answers changed, by the divergence's weight",
    )
