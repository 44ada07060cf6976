"""The rows of `ds-minimodel plan` (plans.py, measure.py) as tables."""

from collections.abc import Sequence
from typing import Any

from ds_minimodel.costs.measure import UPDATES, WARM_UP
from ds_minimodel.recipe.systems import SYSTEMS
from ds_minimodel.report.render import Cell, Table
from ds_minimodel.report.tables import cost_table

KINDS_OF_BYTES = ("weights", "gradients", "optimizer", "activations", "buffers", "total")
Row = dict[str, Any]


def plan_tables(rows: Sequence[Row]) -> list[Table]:
    """Tables of the rows: memory of the steps, and their FLOPs."""
    return [_steps(rows), cost_table(rows)]


def _steps(rows: Sequence[Row]) -> Table:
    first = rows[0]
    notes = [
        f"Ranks: {first['ranks']}, on {first['device']} with {size_of(first['device_memory'])} for each; ZeRO "
        f"{first['zero_stage']}, {first['precision']}. Bytes on one device at the fullest moment of a step, and sent "
        "by each rank in one step. Predicted, not measured."
    ]
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks hold one replica between them; the activations that they "
            "exchange are not in what is sent."
        )
    if first["peak"]:
        notes.append(
            f"At least: the executed FLOPs at {first['peak']:g} TFLOP/s on every rank; reading, writing and the "
            "network come on top. adapt is one language."
        )
    if first["without_kernels"]:
        notes.append(f"By torch's own operators, without kernels here: {', '.join(first['without_kernels'])}.")
    kinds = [*KINDS_OF_BYTES, *(["host"] if any(row["memory"]["host"] for row in rows) else [])]
    cells = [
        [
            *_name(row),
            Cell(str(row["micro_batch_size"])),
            *(Cell(size_of(row["memory"][kind])) for kind in kinds),
            Cell(size_of(row["traffic"]["total"])),
            Cell("yes" if row["fits"] else "NO"),
            Cell(_or_none(row["smallest_zero_stage"])),
            Cell(_or_none(row["largest_micro_batch"])),
            *([Cell(duration(row["least_hours"]))] if first["peak"] else []),
        ]
        for row in rows
    ]
    columns = ["System", "Step", "micro-batch", *kinds, "sent a step", "fits", "smallest ZeRO", "largest micro-batch"]
    return Table("Steps", [*columns, *(["at least"] if first["peak"] else [])], cells, notes=notes)


def measured_table(rows: Sequence[Row]) -> Table:
    """The rows of measure.py."""
    first = rows[0]
    cells = [
        [
            *_name(row),
            Cell(f"{row['seconds']:.3g}"),
            Cell(f"{row['tokens_per_second']:,.0f}"),
            Cell(f"{row['steps']:,}"),
            Cell(duration(row["hours"])),
        ]
        for row in rows
    ]
    notes = [
        f"Measured here. Ranks: {first['ranks']}, device: {first['device']}. The mean of {UPDATES} updates after "
        f"{WARM_UP} others, on random text in sequences of full length. adapt is one language."
    ]
    return Table("Time", ["System", "Step", "an update, s", "tokens/s", "updates", "whole"], cells, notes=notes)


def duration(hours: float) -> str:
    """Hours as days, hours, minutes or seconds, whichever is the largest with one or more."""
    for name, length in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.3g} {name}"
    return f"{hours * 3600:.3g} s"


def _name(row: Row) -> tuple[Cell, Cell]:
    return Cell(SYSTEMS[row["system"]].title), Cell(row["step"])


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def size_of(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"
