"""A constant rate with a fall in its last fifth (one seed) beside a linear one, same peak."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from study.third.cells import declared
from study.third.picture import picture
from study.third.results import LANGUAGES, TEXTS, Results, table

results = Results()
CELLS = [cell for cell in declared(Path(__file__).parent) if cell.schedule == "constant"]
NAMES = {"lora": "LoRA with replay", "bl_base": "embeddings alone"}


def tables() -> Iterator[str]:
    yield table(
        "language | what trains | manual | better by | help, better by | English, better by", rows()
    )


def rows() -> Iterator[str]:
    for cell in CELLS:
        other = replace(cell, schedule="linear")
        differ = " | ".join(results.less(cell, other, text) for text in TEXTS)
        yield (
            f"{LANGUAGES[cell.language]} | {NAMES[cell.system]} | {results.bits(cell):.3f} | "
            f"{differ}"
        )


def drawing() -> str:
    curves = {}
    for cell in CELLS:
        pair = [replace(cell, schedule="linear"), cell]
        before = results.before["en.manual"], results.before[f"{cell.language}.manual"]
        points = [
            (results.bits(one, "en.manual") - before[0], before[1] - results.bits(one))
            for one in pair
        ]
        curves[f"{LANGUAGES[cell.language]}, {NAMES[cell.system].split()[0]}"] = points
    title = "Language gained against English lost: a linear rate, then a constant one"
    return picture(
        title,
        "bits per byte of English lost",
        "bits per byte of the manual gained; constant rates last",
        curves,
    )
