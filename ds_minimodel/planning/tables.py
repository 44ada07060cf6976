"""The rows of `ds-minimodel plan` (plans.py) as tables: memory, time, modules."""

from collections.abc import Sequence
from typing import Any

from ds_minimodel.results.render import Cell, Table
from ds_minimodel.systems import SYSTEMS

HELD = ("weights", "gradients", "optimizer")
KINDS_OF_BYTES = (*HELD, "activations", "buffers", "total")
TAKEN = ("products", "memory", "launches", "network")
MEASURED = (
    "Predicted from the traced operators and what was measured of the device. The parts are of their sum: on a GPU the "
    "host launches beside the rest."
)
BOUND = (
    "A lower bound: the products alone, at the peak of the data sheet. No step is as fast; for an estimate run "
    "ds-minimodel calibrate FILE on such a device and give --device FILE."
)
Row = dict[str, Any]


def plan_tables(rows: Sequence[Row]) -> list[Table]:
    """Tables of the rows: of the steps, of their time where something is known of it, and of the modules."""
    return [_steps(rows), *([_times(rows)] if rows[0]["time"] else []), _modules(rows)]


def _steps(rows: Sequence[Row]) -> Table:
    first = rows[0]
    notes = [
        f"{first['world_size']} ranks, {first['ranks_per_node']} a node, on {first['device']} with "
        f"{size_of(first['device_memory'])} for each; ZeRO {first['zero_stage']}, {first['precision']}. Bytes on one "
        "device at the fullest moment of a step, and sent by each rank in one step. Predicted, not measured."
    ]
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks hold one replica between them; the activations that they "
            "exchange are not in what is sent."
        )
    if first["time"] is None:
        notes.append("Time is not known: ds-minimodel calibrate FILE measures, and --device FILE takes that.")
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
        ]
        for row in rows
    ]
    columns = ["micro-batch", *kinds, "sent a step", "fits", "smallest ZeRO", "largest micro-batch"]
    return Table("Steps", ["System", "Step", *columns], cells, notes=notes)


def _times(rows: Sequence[Row]) -> Table:
    first = rows[0]["time"]
    columns, note = ["a step, s", "tokens/s", "whole", "device-days"], MEASURED
    if first["is_bound"]:
        columns, note = [f"{name}, {'at most' if name == 'tokens/s' else 'at least'}" for name in columns], BOUND
    else:
        columns += ["bound by", *(f"{part}, %" for part in TAKEN)]
    cells = [[*_name(row), *_taken(row["time"])] for row in rows]
    return Table("Time", ["System", "Step", *columns], cells, notes=[f"{note} adapt is one language."])


def _taken(time: Row) -> list[Cell]:
    parts = time["parts"]
    cells = [
        Cell(f"{time['seconds']:.3g}"),
        Cell(f"{time['tokens_per_second']:,.0f}"),
        Cell(duration(time["hours"])),
        Cell(f"{time['device_days']:.3g}"),
    ]
    if parts:
        whole = sum(parts[part] for part in TAKEN)
        cells += [Cell(parts["bound"]), *(Cell(f"{100 * parts[part] / whole:.0f}") for part in TAKEN)]
    return cells


def duration(hours: float) -> str:
    """Hours as days, hours, minutes or seconds, whichever is the largest with one or more."""
    for name, length in (("d", 24.0), ("h", 1.0), ("min", 1 / 60)):
        if hours >= length:
            return f"{hours / length:.3g} {name}"
    return f"{hours * 3600:.3g} s"


def _modules(rows: Sequence[Row]) -> Table:
    cells = [
        [
            *_name(row),
            Cell(module["name"]),
            Cell("yes" if module["trains"] else "no"),
            Cell(module["placement"]),
            Cell(f"{module['parameters'] / 1e6:.2f}"),
            *(Cell(size_of(module[kind])) for kind in HELD),
        ]
        for row in rows
        for module in _joined(row["modules"])
    ]
    return Table("Modules", ["System", "Step", "module", "trains", "lies", "parameters, M", *HELD], cells)


def _joined(modules: Sequence[Row]) -> list[Row]:
    """Modules with equal neighbours of the same list joined: layers.0 … layers.3 as layers.0-3."""
    found: list[Row] = []
    for module in modules:
        head, _, number = module["name"].rpartition(".")
        like = head, module["trains"], module["placement"]
        last = found[-1] if found else None
        if last and number.isdigit() and like == last["like"]:
            last["name"] = f"{head}.{last['first']}-{number}"
            for key in ("parameters", *HELD):
                last[key] += module[key]
        else:
            found.append({**module, "like": like, "first": number})
    return found


def _name(row: Row) -> tuple[Cell, Cell]:
    return Cell(SYSTEMS[row["system"]].title), Cell(row["step"])


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)


def size_of(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if count < 10 * unit else f"{count / unit:.0f} {name}"
    return f"{count} B"
