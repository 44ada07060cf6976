"""`ds-minimodel status` on the command line: what a recipe's jobs have come to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from tqdm import tqdm

from ds_minimodel.cli.steps import Commands, Options, add_recipe_command, recipe_of
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.training.ranks.launch import name_the_cpu

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

if TYPE_CHECKING:
    from ds_minimodel.steps.status import JobStatus


def add_arguments(commands: Commands) -> None:
    """Add the command to argparse's `commands`."""
    status = add_recipe_command(commands, "status", "every job: what is done, at work, left, stale and why", _status)
    status.add_argument("--verify", action="store_true", help="read every byte of what is complete")
    status.add_argument("--json", action="store_true", help="print JSON")


def _status(options: Options) -> None:
    name_the_cpu()  # before the import, which brings DeepSpeed
    from ds_minimodel.steps.status import look

    recipe = recipe_of(options)[0]
    jobs = look(recipe, options.verify)
    if options.json:
        print(json.dumps({"jobs": [asdict(job) for job in jobs]}, indent=1))
    else:
        print("\n".join(_lines(jobs)))
    damaged = [job for job in jobs if job.state == "damaged"]
    if options.verify and damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise UserError(f"{damaged[0].name} is damaged: {damaged[0].why}{more}")


def _lines(jobs: Sequence[JobStatus]) -> list[str]:
    """A line for each job, and one for all."""
    width = max(len(job.name) for job in jobs)
    lines = [
        f"{job.name:{width}}  {job.state:10}  {_size(job.bytes):>8}  {printable(_what(job))}".rstrip() for job in jobs
    ]
    states = ", ".join(f"{count} {state}" for state, count in Counter(job.state for job in jobs).items())
    lines.append(f"{len(jobs)} jobs: {states}; {_size(sum(job.bytes for job in jobs))}")
    return lines


def _what(job: JobStatus) -> str:
    """Where a job's training is, and why it is as it is."""
    training, parts = job.training, []
    if training and job.state != "complete":
        done, left = f"step {training.step:,} of {training.steps:,}", tqdm.format_interval(training.seconds_left)
        parts = [done, f"{training.rate:.3g} steps/s", f"{left} left"]
    return ", ".join([*parts, *([job.why] if job.why else [])])


def _size(count: int) -> str:
    power = min(4, max(count, 1).bit_length() // 10)
    value = count / 1024**power
    return f"{value:.0f} {UNITS[power]}" if power == 0 or value >= 10 else f"{value:.1f} {UNITS[power]}"
