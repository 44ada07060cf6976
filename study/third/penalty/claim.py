"""Ways to keep English while token embeddings alone train, German, peak rate 4e-3, one seed."""

from collections.abc import Iterator
from pathlib import Path

from study.third.cells import read
from study.third.picture import picture
from study.third.results import Row, table

UNTOUCHED, *ROWS = read(Path(__file__).with_name("results.jsonl"))


def rise(row: Row, text: str) -> str:
    return f"{100 * (row[text] / UNTOUCHED[text] - 1):+.2f} %" if text in row else ""


def tables() -> Iterator[str]:
    yield table(
        "English is kept by | thousand tokens | German manual | English manual | English help "
        "pages",
        rows(),
    )


def rows() -> Iterator[str]:
    yield (
        f"untouched | | {UNTOUCHED['de.manual']:.4f} | {UNTOUCHED['en.manual']:.4f} | "
        f"{UNTOUCHED['en.help']:.4f}"
    )
    for row in ROWS:
        english = f"{rise(row, 'en.manual')} | {rise(row, 'en.help')}"
        yield f"{row['way']} | {row['thousands']} | {row['de.manual']:.4f} | {english}"


def drawing() -> str:
    curves = {
        f"{row['way'].split('(')[0][:24].strip(' ,')}, {row['thousands']}k": [
            (100 * (row["en.manual"] / UNTOUCHED["en.manual"] - 1), row["de.manual"])
        ]
        for row in ROWS
    }
    title = "German against what English loses, by how English is kept"
    return picture(title, "English manual, % worse", "bits per byte of the German manual", curves)
