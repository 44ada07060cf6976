"""Stored results of the third study's cells: bits by seed, sigma, and which differences count.

python -m study.third.results       sigma, and every cell: cells.md
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

from study.third.cells import OLD, PIECES, SEEDS, THIRD, Cell, read

Row = dict[str, Any]
FOLDER = Path(__file__).parent
LANGUAGES = {"de": "German", "el": "Greek", "tr": "Turkish"}
TEXTS = {"manual": "manual", "help": "help pages", "en.manual": "English manual"}
T_24, T_2 = (
    2.064,
    4.303,
)  # Student's t at 97.5 %: 12 cells of 3 seeds leave 24 degrees of freedom, one leaves 2

CHOSEN = {
    "bl_base": 8e-3,
    "lora": 4e-3,
    "full": 4e-4,
    "minipost": 8e-3,
}  # peak rates, by the registered rule (rate/)
REPLAY: Row = {"rate": 2e-3, "replay": 0.1, "own": True}


def cell_of(language: str, system: str, share: float = THIRD, **more: Any) -> Cell:
    """A cell at the system's chosen rate, but for what `more` says."""
    return Cell(
        **{"language": language, "system": system, "share": share, "rate": CHOSEN[system], **more}
    )


def percent(share: float) -> str:
    """Of the compute of `bl_base` over all tokens."""
    return f"{100 * share:.3g} %".replace("33.3", "33")


def table(columns: str, rows: Iterable[str]) -> str:
    """Columns and rows are cells with | between them."""
    return "\n".join(
        [f"| {columns} |", "|---" * (columns.count("|") + 1) + "|", *(f"| {row} |" for row in rows)]
    )


class Results:
    """Rows of results.jsonl by the names of cells. A text is "manual", "help" or "both" of a cell's
    language, or "en.manual"."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {row["cell"]: row for row in read(FOLDER / "results.jsonl")}
        self.before: dict[str, float] = self.rows["untouched"]["bits_per_byte"]

    def each(self, cell: Cell, text: str = "manual") -> dict[int, float]:
        """{seed: bits per byte} of those seeds that were run."""
        names = {
            "en.manual": ["en.manual"],
            "both": [f"{cell.language}.manual", f"{cell.language}.help"],
        }
        rows = {seed: self.rows.get(replace(cell, seed=seed).name) for seed in SEEDS}
        of = names.get(text, [f"{cell.language}.{text}"])
        return {
            seed: fmean(row["bits_per_byte"][name] for name in of)
            for seed, row in rows.items()
            if row
        }

    def bits(self, cell: Cell, text: str = "manual") -> float:
        """Mean over its seeds; KeyError where none was run."""
        found = self.each(cell, text)
        if not found:
            raise KeyError(cell.name)
        return fmean(found.values())

    def gains(self, cell: Cell) -> dict[int, float]:
        """{seed: bits per byte of the manual less than untouched}."""
        return {
            seed: self.before[f"{cell.language}.manual"] - bits
            for seed, bits in self.each(cell).items()
        }

    def less(self, cell: Cell, other: Cell, text: str = "manual") -> str:
        """By how many bits the first has fewer, "level" where that is within what seeds differ
        by.
        """
        difference = self.bits(other, text) - self.bits(cell, text)
        least = self.margin(text, len(self.each(cell, text)), len(self.each(other, text)))
        return f"{difference:+.3f}{'' if abs(difference) > least else ' (level)'}"

    def saved(self, cell: Cell, text: str = "manual") -> str:
        """By how many bits it has fewer than the untouched model, "level" as above."""
        bits = self.before[text if "." in text else f"{cell.language}.{text}"] - self.bits(
            cell, text
        )
        least = self.margin(text, len(self.each(cell, text)), inf)
        return f"{bits:+.3f}{'' if abs(bits) > least else ' (level)'}"

    def groups(self) -> Iterator[Cell]:
        """Every cell that was run, once for all its seeds."""
        names = Cell.__dataclass_fields__
        cells = [
            Cell(**{key: row[key] for key in names if key in row})
            for row in self.rows.values()
            if "system" in row
        ]
        yield from dict.fromkeys(replace(cell, seed=1) for cell in cells)

    def sigma(self, text: str) -> float:
        """Pooled standard deviation within the cells that have three seeds."""
        found = [list(self.each(cell, text).values()) for cell in self.groups()]
        return sqrt(fmean(variance(bits) for bits in found if len(bits) == len(SEEDS)))

    def margin(self, text: str, seeds: int = 1, others: float = 1) -> float:
        """Bits that two cells, or means over so many seeds, must differ by to count (95 %)."""
        return T_24 * self.sigma(text) * sqrt(1 / seeds + 1 / others)


def interval(values: list[float]) -> str:
    """Mean and 95 % t-interval of three seeds."""
    half = T_2 * stdev(values) / sqrt(len(values))
    return f"{fmean(values):.2f} [{fmean(values) - half:.2f}, {fmean(values) + half:.2f}]"


def chats() -> dict[tuple[str, float], float]:
    """{(cell, strength): bits per token that the untouched model's own chats cost more than that
    model}.
    """
    rows = [*read(FOLDER / "chats.jsonl"), *read(FOLDER / "strength/results.jsonl")]
    before = next(row["bits_per_token"] for row in rows if row["cell"] == "untouched")
    return {(row["cell"], row.get("strength", 1.0)): row["bits_per_token"] - before for row in rows}


def pages() -> Iterator[str]:
    """The tables of cells.md."""
    results = Results()
    rows = (
        f"{said} | {results.sigma(text):.4f} | {results.margin(text):.3f} | "
        f"{results.margin(text, 3, 3):.3f}"
        for text, said in {**TEXTS, "both": "manual and help pages, mean"}.items()
    )
    yield table(
        "bits per byte of | sigma | two single cells count by | two means of three seeds", rows
    )
    yield table(
        "language | cell | compute | seeds | manual | help | English | choices, %", _cells(results)
    )
    yield table("language | tokens | bytes per token of the manual", _lengths(results))


def _cells(results: Results) -> Iterator[str]:
    for language, name in LANGUAGES.items():
        before = [
            results.before[text] for text in (f"{language}.manual", f"{language}.help", "en.manual")
        ]
        told = " | ".join(f"{bits:.3f}" for bits in before)
        yield f"{name} | untouched | | | {told} | {_chosen(results, ['untouched'], language)}"
        groups = [cell for cell in results.groups() if cell.language == language]
        for cell in sorted(groups, key=lambda one: (one.share, one.name)):
            seeds = list(results.each(cell))
            bits = " | ".join(f"{results.bits(cell, text):.3f}" for text in TEXTS)
            chosen = _chosen(results, [replace(cell, seed=seed).name for seed in seeds], language)
            yield (
                f"{name} | `{cell.name}` | {percent(cell.share)} | {len(seeds)} | {bits} | {chosen}"
            )


def _chosen(results: Results, cells: list[str], language: str) -> str:
    """Right of four paragraphs by mutual information and by bits per byte, mean of those that were
    asked.
    """
    asked = [
        results.rows[f"{cell}-mutual"]["right"][language]
        for cell in cells
        if f"{cell}-mutual" in results.rows
    ]
    return ", ".join(
        f"{fmean(one[kind] for one in asked):.0f}"
        for kind in ("mutual_information", "score")
        if asked
    )


def _lengths(results: Results) -> Iterator[str]:
    for language, name in LANGUAGES.items():
        found = {"the model's own": results.rows["untouched"]}
        for cell in results.groups():
            if cell.language == language:
                number = OLD if cell.old else cell.pieces or PIECES[language]
                tokens = f"{number:,} {'in their place' if cell.vocabulary == 'replace' else 'new'}"
                found[tokens] = next(
                    row
                    for seed in SEEDS
                    if (row := results.rows.get(replace(cell, seed=seed).name))
                )
        for tokens, row in found.items():
            yield f"{name} | {tokens} | {row['bytes_per_token'][f'{language}.manual']:.2f}"


if __name__ == "__main__":
    print(*pages(), sep="\n\n")
