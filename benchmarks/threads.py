"""Threads, ranks and spins of OpenMP's threads against each other on this machine's CPUs."""

import argparse
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.processes import Contestant, time_in_turns
from benchmarks.record import table
from benchmarks.workloads import small_model
from ds_minimodel.launch.hosts import cpu_settings
from ds_minimodel.ops.precision import resolve_precision
from ds_minimodel.report.render import Table

PAGE = """Threads, ranks and spins
Tokens a second of a small model (4 layers of width 128) and a large one (4 layers of width 768),
and in brackets the share of one thread's beside it. Each alone, and beside a process that keeps a
core busy. Finetuning is of rows of 8 to 40 tokens; padding does not count. Spins: how often a
waiting thread of OpenMP looks again before it sleeps (`GOMP_SPINCOUNT`); as they come: what the
package chooses (`launch/hosts.py`).

Threads that spin are faster than one where nobody else computes, and far slower where a core is
busy; threads that sleep at once are nearly as fast as one there. No fixed number of spins serves
both, so the package looks at the start whether others keep cores busy."""

CORES = os.cpu_count() or 1
WORKS = ("pretrain", "finetune", "evaluate")  # the last was measured by an earlier version
# size: (layers, width, vocabulary, tokens of a step on all ranks)
SIZES = {"small": (4, 128, 3000, 2048), "large": (4, 768, 16_000, 1024)}
LENGTHS = {"pretrain": {"seq_length": 64}, "finetune": {"seq_length": 40, "shortest": 8}}


def arguments(parser: argparse.ArgumentParser) -> None:
    spins = [0, 10_000, 100_000]
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=[*SIZES], help="default: all")
    parser.add_argument(
        "--spins", nargs="*", type=int, default=spins, help="default: 0 10000 100000"
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each size, with and without a busy core, and setting."""
    precision = resolve_precision("auto", torch.device("cpu"))
    settings = [
        (1, 1, None),
        *((CORES, 1, spins) for spins in (*options.spins, None)),
        (1, CORES, None),
    ]
    for size, busy in itertools.product(options.sizes, (False, True)):
        *model, tokens = SIZES[size]
        rates: dict[tuple[int, int, int | None], dict[str, float]] = {
            setting: {} for setting in settings
        }
        for step, lengths in LENGTHS.items():
            with busy_core() if busy else contextlib.nullcontext(), contextlib.ExitStack() as stack:
                running = {}
                works = {}
                for threads, ranks, spins in settings:
                    own = cpu_settings() | ({} if spins is None else {"GOMP_SPINCOUNT": str(spins)})
                    contestant = Contestant(
                        f"{threads}-{ranks}-{spins}", threads, ranks, own, options.time_limit
                    )
                    running[threads, ranks, spins] = stack.enter_context(contestant)
                    how = {
                        "precision": precision,
                        "zero_stage": int(ranks > 1),
                        "tokens": tokens // ranks,
                        **lengths,
                    }
                    works[threads, ranks, spins] = small_model(*model, step=step) | how
                found = time_in_turns(running, works, options.repeats, options.clock)
            for setting, one in found.items():
                if "error" in one:
                    yield {"name": f"{step}, {size}, {setting}", **one}
                else:
                    rates[setting][step] = one["tokens"] / one["seconds"]
        for (threads, ranks, spins), of_one in rates.items():
            setting = {
                "size": size,
                "busy": busy,
                "threads": threads,
                "ranks": ranks,
                "spins": spins,
            }
            yield {**setting, "tokens_per_second": of_one}


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """A process that keeps a core busy."""
    # It ends with this process
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    works = [work for work in WORKS if any(work in row["tokens_per_second"] for row in rows)]
    lines = []
    for row in rows:
        rates = row["tokens_per_second"]
        alone = row["threads"] == row["ranks"] == 1
        if alone:
            single = rates
        several = f"{row['ranks']} ranks" if row["ranks"] > 1 else f"{row['threads']} threads"
        spins = "as they come" if row["spins"] is None else f"{row['spins']:,} spins"
        lines.append(
            [
                row["size"],
                "beside a busy core" if row["busy"] else "alone",
                "1 thread" if alone else several if row["ranks"] > 1 else f"{several}, {spins}",
                *(
                    f"{rates[work]:,.0f} ({rates[work] / single[work]:.2f})"
                    if work in rates
                    else ""
                    for work in works
                ),
            ]
        )
    return [table("Tokens a second", ["model", "machine", "setting", *works], lines)]
