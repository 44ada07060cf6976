"""The rows of `ds-minimodel plan` (plans.py, measure.py) as tables."""

from collections.abc import Sequence
from typing import Any

from ds_minimodel.config.systems import SYSTEMS
from ds_minimodel.costs.measure import UNCOUNTED, UPDATES
from ds_minimodel.report.render import Table, duration, size_of
from ds_minimodel.report.tables import cost_table

KINDS_OF_BYTES = ("weights", "gradients", "optimizer", "activations", "buffers", "total")
Row = dict[str, Any]


def plan_tables(rows: Sequence[Row], languages: int = 1) -> list[Table]:
    """Tables of the rows: memory of the steps, and their FLOPs. languages: so many share what is
    paid once.
    """
    first = rows[0]
    notes = [
        f"Ranks: {first['ranks']}, on {first['device']} with {size_of(first['device_memory'])} for "
        "each; ZeRO "
        f"{first['zero_stage']}, {first['precision']}. Bytes on one device at the fullest moment "
        "of a step, and sent "
        "by each rank in one step. Predicted, not measured."
    ]
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks hold one replica between them; the activations that "
            "they "
            "exchange are not in what is sent."
        )
    if first["peak"]:
        notes.append(
            f"At least: the executed FLOPs at {first['peak']:g} TFLOP/s on every rank; reading, "
            "writing and the "
            "network come on top. adapt is one language."
        )
    kinds = [*KINDS_OF_BYTES, *(["host"] if any(row["memory"]["host"] for row in rows) else [])]
    columns = [
        "System",
        "Step",
        "micro-batch",
        *kinds,
        "sent a step",
        "fits",
        "smallest ZeRO",
        "largest micro-batch",
    ]
    cells = [
        [
            SYSTEMS[row["system"]].title,
            row["step"],
            str(row["micro_batch_size"]),
            *(size_of(row["memory"][kind]) for kind in kinds),
            size_of(row["traffic"]["total"]),
            "yes" if row["fits"] else "NO",
            *(
                "none" if row[key] is None else str(row[key])
                for key in ("smallest_zero_stage", "largest_micro_batch")
            ),
            *([duration(row["least_hours"])] if first["peak"] else []),
        ]
        for row in rows
    ]
    steps = Table("Steps", [*columns, *(["at least"] if first["peak"] else [])], cells, notes=notes)
    return [steps, cost_table(rows, first["device"].startswith("v100"), languages)]


def measured_table(rows: Sequence[Row]) -> Table:
    """The rows of measure.py."""
    first = rows[0]
    cells = [
        [
            SYSTEMS[row["system"]].title,
            row["step"],
            f"{row['seconds']:.3g}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['steps']:,}",
            duration(row["hours"]),
        ]
        for row in rows
    ]
    notes = [
        f"Measured here. Ranks: {first['ranks']}, device: {first['device']}. The mean of {UPDATES} "
        "updates after "
        f"{UNCOUNTED} others, on random text in sequences of full length. adapt is one language."
    ]
    return Table(
        "Time",
        ["System", "Step", "an update, s", "tokens/s", "updates", "whole"],
        cells,
        notes=notes,
    )
