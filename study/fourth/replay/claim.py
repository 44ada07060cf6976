"""Arms of the share of self-generated replay beside the default, as registration.md judges them."""

from collections.abc import Iterator
from pathlib import Path

from study.fourth.kl.claim import lines, rows_of
from study.fourth.screen import table

ROWS = rows_of(Path(__file__).parent)


def tables() -> Iterator[str]:
    yield "\n".join(table(ROWS))


def drawing() -> str:
    return lines(ROWS, "German gained against answers changed, by the share of replay")
