"""Measure one part of the system on this machine:

    python -m benchmarks steps     # training steps against Hugging Face's
    python -m benchmarks kernels --ops attention --precision bf16
    python -m benchmarks PART --help
    python -m benchmarks pages     # the kept pages anew from their records

Run it from the root of a checkout. PART.jsonl and PART.md in --out get a run more (default:
runs/benchmarks; records that are kept: --out benchmarks). benchmarks/README.md lists what was
measured.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import kernels, prepare, saves, steps, stores, threads
from benchmarks.record import INDEX, Record, index, page, runs_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import atomic_write

PARTS = {
    "steps": steps,
    "kernels": kernels,
    "threads": threads,
    "stores": stores,
    "prepare": prepare,
    "saves": saves,
}
HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the command line; 1 where something could not be measured, 2 for a user's mistake."""
    options = parse(sys.argv[1:])
    if options.part == "pages":
        write_pages(HERE)
        return 0
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    record = Record(options.out, options.part, PARTS[options.part], command)

    code = 0
    try:
        for row in PARTS[options.part].measure(options):
            record.add(row)
    except (UserError, OSError) as error:
        print(f"ds-minimodel: {error}", file=sys.stderr)
        code = 2
    if record.rows:
        print(page(record.part, [{"facts": record.facts, "rows": record.rows}]))
    parts = [part for row in record.rows for part in (row, *row.get("contestants", {}).values())]
    return code or int(any("error" in part for part in parts))


def write_pages(folder: Path) -> None:
    """Write the pages of all records in `folder`, and its index."""
    for name, part in PARTS.items():
        if runs := runs_of(folder, name):
            with atomic_write(folder / f"{name}.md", "w") as file:
                file.write(page(part, runs))
    content = index(folder, PARTS)
    with atomic_write(folder / INDEX, "w") as file:
        file.write(content)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line."""
    on_gpu = torch.cuda.is_available()
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--repeats", type=int, default=15 if on_gpu else 5, help="rounds; default: %(default)s"
    )
    common.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help=(
            "cpu: time that the processes ran, for one thread on a machine that others use too; "
            "default: wall"
        ),
    )
    common.add_argument(
        "--time-limit", type=float, default=600, help="seconds for one answer; default: 600"
    )
    common.add_argument(
        "--out", type=Path, default=Path("runs/benchmarks"), help="folder; default: %(default)s"
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, part in PARTS.items():
        summary = (part.__doc__ or "").partition("\n")[0]
        part.arguments(
            parts.add_parser(name, help=summary, description=part.__doc__, parents=[common])
        )
    parts.add_parser("pages", help="Write the kept pages, and their index, anew from the records.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
