"""Tables of the fifth study's part B, out of the lines of its scripts."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import fmean

from ds_minimodel.config.systems import BASELINE
from ds_minimodel.report.curves import name_of, near_maximal, training_curves
from study.fifth import classifier, decoder, systems
from study.fifth.cells import Cell
from study.fifth.results import Row
from study.fifth.tables import LANGUAGES, NOT_RUN, groups

KINDS = {"help": "help", systems.OTHER: "GIMP's and GNOME's help", "text": ""}


def pages() -> Iterator[str]:
    """A table for each item."""
    yield "### Classifier of topics, % right; English before and after"
    yield table("language | pairs | seeds | English | untouched | aligned", _of_classifier())
    head = "start | system | seeds | score at 0, 1/8, 1/4, 1/2, all | held-out bits | TFLOP to 95 %"
    yield "### The quickstart's systems, German topics"
    yield table(head, _of_systems())
    yield "### SmolLM2-135M with 1,000 new Greek tokens, bits per byte"
    yield table("start | seeds | Greek at 0 and 60,000 tokens | English", _of_decoder())


def _of_classifier() -> Iterator[str]:
    of = groups(classifier.declared(), classifier.RESULTS)
    before = {row["seed"]: row["english"] for row in of[classifier.finetuned(1)]}
    for cell, rows in of.items():
        if rows and cell.language != "en":
            english = fmean(before[row["seed"]] for row in rows)
            after, untouched, aligned = (
                f"{fmean(row[key] for row in rows):.1f}"
                for key in ("english", "untouched", "aligned")
            )
            told = LANGUAGES[cell.language], called(cell), len(rows)
            yield row_of(*told, f"{english:.1f}, {after}", untouched, aligned)


def _of_systems() -> Iterator[str]:
    for cell, rows in groups(systems.declared(), systems.RESULTS).items():
        spent = spent_of(rows) if rows else {}
        for system, cost in spent.items():
            by_step = zip(*(means(row, system) for row in rows), strict=True)
            bits = zip(*(row["systems"][system]["bits"] for row in rows), strict=True)
            scores = ", ".join(f"{fmean(points):.1f}" for points in by_step)
            held_out = ", ".join(f"{fmean(of_step):.2f}" for of_step in bits)
            told = "∞" if cost == inf else f"{cost:.2f}"
            yield row_of(called(cell), name_of(system), len(rows), scores, held_out, told)


def _of_decoder() -> Iterator[str]:
    for cell, rows in groups(decoder.declared(), decoder.RESULTS).items():
        if rows:
            greek, english = (
                ", ".join(
                    f"{fmean(row['bits'][code][step] for row in rows):.3f}"
                    for step in rows[0]["bits"][code]
                )
                for code in ("el", "en")
            )
            yield row_of(called(cell), len(rows), greek, english)


def called(cell: Cell) -> str:
    size = f"{cell.pairs:,}" if cell.pairs else ""
    arm = "" if cell.arm == "aligned" else cell.arm
    return " ".join(filter(None, [arm, size, KINDS.get(cell.kind, cell.kind)]))


def row_of(*told: object) -> str:
    return f"| {' | '.join(map(str, told))} |"


def table(head: str, rows: Iterable[str]) -> str:
    lines = [*rows]
    if not lines:
        return f"{NOT_RUN.capitalize()}."
    return "\n".join([f"| {head} |", "|---" * (head.count("|") + 1) + "|", *lines])


def means(row: Row, system: str = BASELINE) -> list[float]:
    """A system's scores by step, means over finetuning seeds."""
    return [*map(fmean, zip(*row["systems"][system]["scores"], strict=True))]


def spent_of(rows: Sequence[Row]) -> dict[str, float]:
    """{system: TFLOPs to 95 % of BL_BASE's last score}, on curves averaged over all seeds."""
    points = [
        {"system": system, "task": "", "language": "", "seed": f"{row['seed']} {index}"}
        | {"step": step, "eflops": eflops, "score": score}
        for row in rows
        for system, curve in row["systems"].items()
        for index, scores in enumerate(curve["scores"])
        for step, eflops, score in zip(curve["steps"], curve["eflops"], scores, strict=True)
    ]
    found = near_maximal(training_curves(points))
    return {system: cost.eflops * 1e6 for (system, _, of), cost in found.items() if of == ""}
