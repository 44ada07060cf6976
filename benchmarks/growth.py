"""Training steps at growing vocabulary, length, depth, width and number of ranks."""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.processes import Contestant, time_in_turns
from benchmarks.record import table
from benchmarks.workloads import small_model
from ds_minimodel.report.render import Table

PAGE = """How the cost of a step grows
Sizes where an axis does not vary: vocabulary 8,000, length 128, depth 4, width 256, one rank; heads of 64, about the
same number of tokens a step on each rank at every point, fp32, ZeRO 1, one thread a rank. The points of an axis take
turns. More ranks than cores share them.

Slopes are of logarithms, of the fastest steps: others on a machine only add to a step. Where the slope of the seconds
a token is below that of the FLOPs, larger products are faster ones or some of the step does not grow; where it is
above, memory binds. Of ranks the FLOPs a token are the same."""

STEPS = ("pretrain", "adapt-full")
BASE = {"vocabulary": 8000, "length": 128, "depth": 4, "width": 256, "ranks": 1}
AXES = {
    "vocabulary": [2000, 8000, 32_000, 64_000],
    "length": [32, 128, 512],
    "depth": [2, 4, 12],
    "width": [128, 256, 512],
    "ranks": [1, 2],
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axes", nargs="+", choices=AXES, default=[*AXES], help="default: all")
    parser.add_argument("--points", type=int, help="the first so many points of an axis; default: all")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step on each rank; default: %(default)s")


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each point of an axis and step."""
    for axis in options.axes:
        running, works = {}, {}
        with ExitStack() as stack:
            for step, x in itertools.product(STEPS, AXES[axis][: options.points]):
                at = {**BASE, axis: x}
                contestant = Contestant(f"{axis}-{x}", ranks=at["ranks"], time_limit=options.time_limit)
                running[step, x] = stack.enter_context(contestant)
                sizes, own = (at["depth"], at["width"], at["vocabulary"]), {"seq_length": at["length"]}
                works[step, x] = small_model(*sizes, step=step, tokens=options.tokens, **own)
            found = time_in_turns(running, works, options.repeats, options.clock)
        for (step, x), one in found.items():
            yield {"name": f"{step}, {axis} {x}", "axis": axis, "x": x, "step": step, **one}


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    points = table(
        "Tokens a second",
        ["step", "axis", "value", "tokens/s", "seconds: fastest", "median", "slowest", "GiB", "GFLOP/s"],
        [
            [
                row["step"],
                row["axis"],
                f"{row['x']:,}",
                f"{row['tokens'] / row['fastest']:,.0f}",
                *(f"{row[key]:.3f}" for key in ("fastest", "seconds", "slowest")),
                f"{row['memory_bytes'] / 2**30:.2f}",
                f"{row['flops'] / row['fastest'] / 1e9:,.0f}",
            ]
            for row in rows
        ],
    )
    curves: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault((row["step"], row["axis"]), []).append(row)
    slopes = table(
        "Slopes",
        ["step", "axis", "seconds a token", "executed FLOPs a token"],
        [
            [*key, *(f"{slope(of_one, of):.2f}" for of in ("fastest", "flops"))]
            for key, of_one in curves.items()
            if len(of_one) > 1
        ],
    )
    return [points, slopes]


def slope(rows: Sequence[dict[str, Any]], of: str) -> float:
    """Least-squares slope of log (what a token takes) over log x."""
    x, y = [row["x"] for row in rows], [row[of] / row["tokens"] for row in rows]
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
