"""The rows of `ds-minimodel plan` (pipeline/plans.py) as tables: memory, time, tasks, modules, scaling."""

from collections.abc import Mapping, Sequence
from typing import Any

from ds_minimodel.results.render import EMPTY, Cell, Table
from ds_minimodel.systems import SYSTEMS

KINDS_OF_BYTES = ("weights", "gradients", "optimizer", "activations", "buffers", "total")
TAKEN = ("products", "memory", "launches", "network")
SCALED = ("batch", "tokens/s", "efficiency, %", "bound by", "whole")


def plan_tables(rows: Sequence[dict[str, Any]], tasks: Sequence[dict[str, Any]] = ()) -> list[Table]:
    """Tables of the rows: of the steps, of their time and that of tasks where it is foretold, and of the modules."""
    steps, modules = _memory_tables(rows)
    return [steps, *_time_tables(rows, tasks), modules]


def _memory_tables(rows: Sequence[dict[str, Any]]) -> tuple[Table, Table]:
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
    return (
        Table(
            "Steps",
            ["System", "Step", "micro-batch", *kinds, "sent a step", "fits", "smallest ZeRO", "largest micro-batch"],
            steps,
            notes=notes,
        ),
        Table("Modules", ["System", "Step", "module", "kind", "lives", "parameters, M", *KINDS_OF_BYTES[:3]], parts),
    )


def _time_tables(rows: Sequence[dict[str, Any]], tasks: Sequence[dict[str, Any]]) -> list[Table]:
    first = rows[0]["time"]
    if first is None:
        return [
            Table(
                "Time",
                ["System", "Step"],
                [],
                notes=[
                    "Not foretold: this machine has no figures. `ds-minimodel calibrate FILE` measures them, and "
                    "`--device FILE` takes them."
                ],
            )
        ]
    columns = ["a step, s", "tokens/s", "bound by", *(f"{part}, %" for part in TAKEN), "share of peak, %"]
    priced = first["cost"] is not None
    whole = ["whole", "device-days", *(["cost"] if priced else [])]
    notes = [
        "Foretold from the traced operators and the device's figures, not measured. The parts are of their sum: on a "
        "GPU the host launches beside the rest. V100 days: the paper's, by its formula at 30 TFLOP/s. Fastest: of "
        "what fits here, as ZeRO stage × micro-batch, and its seconds a step. adapt is one language."
    ]
    of_steps = [
        [
            *_name(row),
            *_taken(row["time"]),
            *_whole(row["time"], priced),
            Cell(f"{row['time']['v100_days']:.3g}"),
            _fastest(row),
        ]
        for row in rows
    ]
    found = [Table("Time", ["System", "Step", *columns, *whole, "paper's V100 days", "fastest"], of_steps, notes=notes)]
    if tasks:
        of_tasks = [
            [
                *_name(row),
                Cell(row["task"]),
                Cell(str(row["example_tokens"])),
                *_taken(row["time"]),
                *_whole(row["time"], priced),
            ]
            for row in tasks
        ]
        note = (
            "Examples of so many tokens, without padding (--example-tokens). Evaluation: a forward pass on each rank. "
            "Hours of finetuning, all seeds, where --examples says how many a training file has."
        )
        found.append(
            Table("Time of tasks", ["System", "Step", "task", "tokens", *columns, *whole], of_tasks, notes=[note])
        )
    return found


def _taken(time: dict[str, Any]) -> list[Cell]:
    parts = sum(time[part] for part in TAKEN)
    return [
        Cell(f"{time['seconds']:.3g}"),
        Cell(f"{time['tokens_per_second']:,.0f}"),
        Cell(time["bound"]),
        *(Cell(f"{100 * time[part] / parts:.0f}") for part in TAKEN),
        Cell(f"{100 * time['share_of_peak']:.0f}"),
    ]


def _whole(time: dict[str, Any], priced: bool) -> list[Cell]:
    if time["hours"] is None:
        return [EMPTY] * (3 if priced else 2)
    cost = [Cell(f"{time['cost']:,.2f}")] if priced else []
    return [Cell(duration(time["hours"])), Cell(f"{time['device_days']:.3g}"), *cost]


def duration(hours: float) -> str:
    """Hours as days, hours, minutes or seconds, whichever is the largest with one or more."""
    for name, length in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.3g} {name}"
    return f"{hours * 3600:.3g} s"


def _fastest(row: dict[str, Any]) -> Cell:
    found = row["time"]["fastest"]
    if found is None:
        return Cell("none")
    return Cell(f"ZeRO {found['zero_stage']} × {found['micro_batch_size']}", f"{found['seconds']:.3g}")


def scaling_tables(rows: Sequence[dict[str, Any]], ranks: Mapping[tuple[str, str], int]) -> list[Table]:
    """A table for each step: weak and strong scaling side by side. ranks: recommended ones by (system, step)."""
    tables = []
    for system, step in dict.fromkeys((row["system"], row["step"]) for row in rows):
        of_step = [row for row in rows if (row["system"], row["step"]) == (system, step)]
        weak, strong = ([row for row in of_step if row["scaling"] == kind] for kind in ("weak", "strong"))
        priced = any(row["time"] and row["time"]["cost"] is not None for row in strong)
        columns = [f"{kind}: {what}" for kind in ("weak", "strong") for what in SCALED]
        cells = [
            [Cell(str(one["world_size"])), *_scaled(one), *_scaled(other), *([_cost(other)] if priced else [])]
            for one, other in zip(weak, strong, strict=True)
        ]
        most = ranks.get((system, step), "fewer")
        note = f"Recommended: {most} ranks, the most with a strong efficiency of 80 % or more."
        title = f"Scaling of {step}, {SYSTEMS[system].title}"
        tables.append(Table(title, ["ranks", *columns, *(["cost"] if priced else [])], cells, notes=[note]))
    return tables


def _scaled(row: dict[str, Any]) -> list[Cell]:
    time = row["time"]
    if time is None:
        return [EMPTY] * len(SCALED)
    return [
        Cell(f"{row['batch_size']:,}"),
        Cell(f"{time['tokens_per_second']:,.0f}"),
        Cell(f"{100 * row['efficiency']:.0f}"),
        Cell(time["bound"]),
        Cell(duration(time["hours"])),
    ]


def _cost(row: dict[str, Any]) -> Cell:
    return EMPTY if row["time"] is None else Cell(f"{row['time']['cost']:,.2f}")


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
