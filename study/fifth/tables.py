"""Tables and verdicts of the fifth study's part A, out of results.jsonl."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, variance

from study.fifth.cells import TESTS, Cell, declared
from study.fifth.lines import rows_of
from study.fifth.results import RESULTS, Row

LANGUAGES = {
    "de": "German",
    "el": "Greek",
    "hu": "Hungarian",
    "tr": "Turkish",
    "eu": "Basque",
    "ja": "Japanese",
}
ASKED = 1000  # lines of a kind
NOT_RUN = "not run yet"
Groups = dict[Cell, list[Row]]


def groups(cells: Iterable[Cell] = tuple(declared()), path: Path = RESULTS) -> Groups:
    """{cell of the first draw and seed: its lines, one for each draw and seed}."""
    found: Groups = defaultdict(list)
    rows = rows_of(path)
    for cell in cells:
        group = found[replace(cell, draw=1, seed=1)]
        if cell.name in rows:
            group.append(rows[cell.name])
    return found


def both_ways(row: Row, test: str, source: str = "") -> tuple[float, float] | None:
    """Recall@1 of the language in English and of English in the language, as shares; None where
    the language has too few lines of that kind. source: "source_pack_" for the untouched model.
    """
    scores = row["scores"].get(f"{test}-test")
    if scores is None:
        return None
    return scores[f"{source}score"] / 100, scores[f"{source}back_recall_at_1"] / 100


def count(rows: Sequence[Row], test: str, source: str = "") -> float | None:
    """The mean of both ways over draws, by which arms compare; None where nothing was run."""
    found = [ways for row in rows if (ways := both_ways(row, test, source))]
    return fmean(map(fmean, found)) if found else None


def draw_variance(of: Groups) -> float:
    """Variance of a count over draws, pooled over cells with three of them."""
    found = []
    for rows in of.values():
        counts = [one for row in rows if (one := count([row], "help")) is not None]
        if len(counts) == 3:
            found.append(variance(counts))
    return fmean(found) if found else 0.0


def margin(of: Groups, *sides: tuple[Sequence[Row], float]) -> float:
    """What two counts must differ by, by the registered rule. sides: lines, and their count."""
    pooled = draw_variance(of)
    return 1.96 * sqrt(sum(p * (1 - p) / ASKED + pooled / len(rows) for rows, p in sides))


def pages() -> Iterator[str]:
    """A table for each language, and one of what is not run yet."""
    of = groups()
    for language, name in LANGUAGES.items():
        own = {cell: rows for cell, rows in of.items() if cell.language == language}
        lines = [_line(cell, rows) for cell, rows in own.items() if rows]
        missing = [cell for cell, rows in own.items() if not rows]
        yield f"### {name}"
        if lines:
            (first, *_) = (rows for rows in own.values() if rows)
            yield "\n".join([_HEAD, "|---" * 11 + "|", _untouched(first[0]), *lines])
        if missing:
            yield f"{NOT_RUN.capitalize()}: " + ", ".join(map(_called, missing)) + "."


_HEAD = (
    "| arm | pairs from | given | runs | new tokens | help | gnome | story "
    "| English split differently, % | tokens a line, before and after | core seconds |"
)


def _called(cell: Cell) -> str:
    return f"{cell.arm} {cell.kind}" + (f" {cell.pairs:,}" if cell.pairs else "")


def _untouched(row: Row) -> str:
    found = " | ".join(_ways([row], test, "source_pack_") for test in TESTS)
    return f"| untouched | | | | | {found} | | | |"


def _line(cell: Cell, rows: Sequence[Row]) -> str:
    found = " | ".join(_ways(rows, test) for test in TESTS)
    given = f"{cell.pairs:,}" if cell.pairs else ""
    tokens = f"{fmean(row['new_tokens'] for row in rows):,.0f}"
    seconds = f"{fmean(row['core_seconds'] for row in rows):,.0f}"
    cut, lengths = "–", "–"
    if english := [row["english"] for row in rows if row["english"]]:
        cut = f"{100 * fmean(own['cut_otherwise'] / own['source_lines'] for own in english):.1f}"
        means = (fmean(own[f"tokens_{when}"] for own in english) for when in ("before", "after"))
        lengths = ", ".join(f"{mean:.1f}" for mean in means)
    told = [cell.arm, cell.kind, given, len(rows), tokens, found, cut, lengths, seconds]
    return f"| {' | '.join(map(str, told))} |"


def _ways(rows: Sequence[Row], test: str, source: str = "") -> str:
    """Both ways, means over the lines."""
    found = [ways for row in rows if (ways := both_ways(row, test, source))]
    return ", ".join(f"{fmean(way):.3f}"[1:] for way in zip(*found, strict=True)) or "–"
