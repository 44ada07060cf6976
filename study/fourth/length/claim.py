"""Gain by position in a text, with training samples of 128, 256 and 512 tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from study.fourth.kl.claim import rows_of
from study.fourth.screen import table as judged
from study.third.picture import picture
from study.third.results import table

ROWS = rows_of(Path(__file__).parent)
WHOLE = [row for row in ROWS if row["strength"] == "1"]
TEXTS = {
    "de.help": "German help pages",
    "de.manual": "German manual",
    "en.manual": "English manual",
}


def tables() -> Iterator[str]:
    yield "\n".join(judged(ROWS))
    places = list(WHOLE[0]["texts"]["de.help"]["rises"])
    yield table(f"arm, strength 1 | bits per byte saved of | {' | '.join(places)}", rows())


def rows() -> Iterator[str]:
    for row in WHOLE:
        for text, name in TEXTS.items():
            saved = (before - after for before, after in row["texts"][text]["by_place"])
            yield f"{row['arm']} | {name} | {' | '.join(f'{bits:+.3f}' for bits in saved)}"


def drawing() -> str:
    curves = {}
    for row in WHOLE:
        each = np.array([row["texts"][text]["by_place"] for text in ("de.help", "de.manual")])
        saved = (each[..., 0] - each[..., 1]).mean(0)
        curves[row["arm"]] = [(float(place), float(bits)) for place, bits in enumerate(saved, 1)]
    title = "German gained by position in a text, mean of help pages and manual"
    return picture(
        title, "1: tokens 0-128, 2: 128-512, 3: 512-1,024", "bits per byte of German gained", curves
    )
