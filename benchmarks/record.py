"""Records of measurements: PART.jsonl holds a run a line, PART.md the same as tables.

A run is {"facts": {device, date, commit, command, …}, "rows": [row, …]}. A row that has "error"
says why a part of the run has no figures.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.device import device_name
from ds_minimodel import __version__
from ds_minimodel.common.files import atomic_write
from ds_minimodel.report.render import Block, Cell, Facts, Heading, Table, to_markdown

PACKAGES = ("torch", "deepspeed", "transformers", "apex", "liger_kernel")
INDEX = "README.md"


class Record:
    """The records of a part in a folder, with a new run at their end; written anew with each row of
    it.
    """

    def __init__(self, folder: Path, name: str, part: ModuleType, command: str) -> None:
        self.folder = folder
        self.name = name
        self.part = part
        self.facts = circumstances() | {"command": command}
        self.rows: list[dict[str, Any]] = []
        self.earlier = runs_of(folder, name)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, and write all."""
        self.rows.append(row)
        loads = self.facts["load"].partition(",")[0]
        self.facts["load"] = f"{loads}, then {os.getloadavg()[0]:.1f}"
        runs = [*self.earlier, {"facts": self.facts, "rows": self.rows}]
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / f"{self.name}.jsonl", "w") as file:
            file.writelines(
                json.dumps(run, separators=(",", ":"), ensure_ascii=False) + "\n" for run in runs
            )
        with atomic_write(self.folder / f"{self.name}.md", "w") as file:
            file.write(page(self.part, runs))


def runs_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The recorded runs of a part."""
    path = folder / f"{name}.jsonl"
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def circumstances() -> dict[str, str]:
    """What a measurement runs on, and when."""
    versions = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    return {
        "device": f"{device_name()}, {len(os.sched_getaffinity(0))} cores",
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": ", ".join(
            [f"ds_minimodel {__version__}", f"Python {platform.python_version()}", *versions]
        ),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """Commit of the sources, with a mark where they differ from it; "unknown" outside a
    checkout.
    """
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def page(part: ModuleType, runs: Sequence[dict[str, Any]]) -> str:
    """The runs of a part as Markdown, the newest first."""
    blocks: list[Block] = []
    for run in reversed(runs):
        facts = dict(run["facts"])
        rows = [row for row in run["rows"] if "error" not in row]
        errors = {str(row["name"]): str(row["error"]) for row in run["rows"] if "error" in row}
        blocks += [Heading(f"{facts.pop('device')}, {facts.pop('date')}"), Facts(facts)]
        blocks += part.tables(rows) if rows else []
        if errors:
            blocks += [Heading("What failed", 3), Facts(errors)]
    title, _, about = part.PAGE.partition("\n")
    return to_markdown(title, blocks).replace("\n", f"\n\n{about}\n", 1).rstrip() + "\n"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table of plain texts."""
    return Table(title, columns, [[Cell(str(text)) for text in row] for row in rows])


def index(folder: Path, parts: Mapping[str, ModuleType]) -> str:
    """The index of `folder` with a row for each recorded run at the end of its table, which ends
    the page.
    """
    lines = (folder / INDEX).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not any(line.startswith(f"| [{name}](") for name in parts)]
    for name, part in parts.items():
        what = part.PAGE.partition("\n")[0]
        for facts in (run["facts"] for run in reversed(runs_of(folder, name))):
            cells = [
                f"[{name}]({name}.md)",
                what,
                facts["device"],
                facts["date"],
                f"`{facts['command']}`",
            ]
            kept.append(f"| {' | '.join(cells)} |")
    return "\n".join(kept) + "\n"
