"""The default arm at each merge strength, by what `extend` decides by."""

from collections.abc import Iterator
from pathlib import Path

from study.fourth.kl.claim import ROWS as READ
from study.fourth.kl.claim import lines, rows_of
from study.fourth.screen import gain
from study.fourth.screen import table as judged
from study.third.results import table

ROWS = rows_of(Path(__file__).parent)
BY_LAYER = [row for row in READ if row["strength"] in ("ends-0", "fifths-0.5")]


def tables() -> Iterator[str]:
    yield "\n".join(judged([*ROWS, *BY_LAYER]))
    whole = gain(ROWS[0])
    kept = (
        f"{row['strength']} | {gain(row):.4f} | {100 * gain(row) / whole:.0f} %" for row in ROWS
    )
    yield table("strength | gain | of the whole update's", kept)


def drawing() -> str:
    return lines(ROWS, "German gained against answers changed, at merge strengths 0.5, 0.75 and 1")
