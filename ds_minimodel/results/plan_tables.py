"""The rows of `ds-minimodel plan` (pipeline/plans.py) as tables: one of the steps, one of the modules of each."""

from collections.abc import Sequence
from typing import Any

from ds_minimodel.results.render import Cell, Table
from ds_minimodel.systems import SYSTEMS

KINDS_OF_BYTES = ("weights", "gradients", "optimizer", "activations", "buffers", "total")


def plan_tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Tables of the rows: one of the steps, one of the modules of each."""
    first = rows[0]
    notes = [
        f"{first['world_size']} ranks, {first['ranks_per_node']} a node, on {first['device']} with "
        f"{_size(first['device_memory'])} for each; ZeRO {first['zero_stage']}, {first['precision']}. Bytes on one "
        "device at the fullest moment of a step, and sent by each rank in one step. Predicted, not measured."
    ]
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks hold one replica between them; the activations that they "
            "exchange are not in what is sent."
        )
    kinds = [*KINDS_OF_BYTES, *(["host"] if any(row["memory"]["host"] for row in rows) else [])]
    steps = [
        [
            *_name(row),
            Cell(str(row["micro_batch_size"])),
            *(Cell(_size(row["memory"][kind])) for kind in kinds),
            Cell(_size(row["wire"]["total"])),
            Cell("yes" if row["fits"] else "NO"),
            Cell(_or_none(row["smallest_zero_stage"])),
            Cell(_or_none(row["largest_micro_batch"])),
        ]
        for row in rows
    ]
    parts = [
        [
            *_name(row),
            Cell(part["name"]),
            Cell(part["kind"]),
            Cell(part["placement"]),
            Cell(f"{part['parameters'] / 1e6:.2f}"),
            *(Cell(_size(part[kind])) for kind in KINDS_OF_BYTES[:3]),
        ]
        for row in rows
        for part in _runs(row["parts"])
    ]
    return [
        Table(
            "Steps",
            ["System", "Step", "micro-batch", *kinds, "sent a step", "fits", "smallest ZeRO", "largest micro-batch"],
            steps,
            notes=notes,
        ),
        Table("Modules", ["System", "Step", "module", "kind", "lives", "parameters, M", *KINDS_OF_BYTES[:3]], parts),
    ]


def _name(row: dict[str, Any]) -> tuple[Cell, Cell]:
    return Cell(SYSTEMS[row["system"]].title), Cell(row["step"])


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def _runs(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts with equal neighbours of the same list joined: layers.0 … layers.3 as layers.0-3."""
    joined: list[dict[str, Any]] = []
    for part in parts:
        head, _, number = part["name"].rpartition(".")
        last = joined[-1] if joined else None
        if last and number.isdigit() and (head, part["kind"], part["placement"]) == last["run"]:
            last["name"] = f"{head}.{last['first']}-{number}"
            for key in ("parameters", *KINDS_OF_BYTES[:3]):
                last[key] += part[key]
        else:
            joined.append({**part, "run": (head, part["kind"], part["placement"]), "first": number})
    return joined


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"
