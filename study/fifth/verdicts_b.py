"""Verdicts of what the fifth study claims of its part B, B1 to B4."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean, stdev

from ds_minimodel.config.systems import BASELINE
from ds_minimodel.report.curves import name_of
from study.fifth import decoder, systems
from study.fifth.cells import Cell
from study.fifth.results import Row
from study.fifth.tables import NOT_RUN, groups
from study.fifth.tables_b import called, means, row_of, spent_of, table

SEEDS = 3
T_2 = 4.303  # Student's t at 97.5 %, of three seeds
MOST_ADDED = 3.0  # points
LEAST_SAVED = 0.1  # bits per byte
LEVEL = 0.03  # bits per byte


def pages() -> Iterator[str]:
    """The table of verdicts, by what rows are aligned."""
    of = groups(systems.declared(), systems.RESULTS)
    overlap, *aligned = of.values()
    asked = [called(cell) for cell in of][1:]
    lines = list[str]()
    for claim, judge in CLAIMS.items():
        found = (
            judge(overlap, rows) if len(overlap) == len(rows) == SEEDS else NOT_RUN
            for rows in aligned
        )
        lines.append(row_of(claim, *found))
    yield table(" | ".join(["claim", *asked]), lines)
    bits = groups(decoder.declared(), decoder.RESULTS)
    sizes = [cell for cell in bits if cell.arm == "aligned"]
    found = (_saved(bits[cell], bits[Cell(**vars(cell) | {"arm": "means"})]) for cell in sizes)
    claim = "B4, aligned rows save .1 bits at 0 tokens, none later"
    yield table(" | ".join(["claim", *map(called, sizes)]), [row_of(claim, *found)])


def _as_much(overlap: Sequence[Row], rows: Sequence[Row]) -> str:
    more = [means(row)[0] - means(before)[-1] for before, row in zip(overlap, rows, strict=True)]
    verdict = "holds" if min(more) >= 0 else "refuted" if max(more) < 0 else "open"
    return f"{verdict}, {', '.join(f'{points:+.1f}' for points in more)}"


def _added(overlap: Sequence[Row], rows: Sequence[Row]) -> str:
    more = [means(row)[-1] - means(row)[0] for row in rows]
    half = T_2 * stdev(more) / sqrt(len(more))
    mean = fmean(more)
    is_above = mean - half > MOST_ADDED
    verdict = "holds" if mean <= MOST_ADDED else "refuted" if is_above else "open"
    return f"{verdict}, {mean:+.1f} ± {half:.1f}"


def _none_saved(overlap: Sequence[Row], rows: Sequence[Row]) -> str:
    spent = spent_of(rows)
    sooner = [
        name_of(system) for system in ("minipost", "minijoint") if spent[system] < spent[BASELINE]
    ]
    return f"refuted by {' and '.join(sooner)}" if sooner else "holds"


CLAIMS: dict[str, Callable[[Sequence[Row], Sequence[Row]], str]] = {
    "B1, without step 2 as much as from overlap after it": _as_much,
    "B2, step 2 adds at most 3 points": _added,
    "B3, no mini-model is at 95 % sooner": _none_saved,
}


def _saved(aligned: Sequence[Row], others: Sequence[Row]) -> str:
    if not aligned or not others:
        return NOT_RUN
    first, last = (
        fmean(row["bits"]["el"][step] for row in aligned)
        - fmean(row["bits"]["el"][step] for row in others)
        for step in others[0]["bits"]["el"]
    )
    verdict = "holds" if first <= -LEAST_SAVED and abs(last) <= LEVEL else "refuted"
    return f"{verdict}, {first:+.3f}, {last:+.3f}"
