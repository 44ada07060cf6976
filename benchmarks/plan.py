"""The time that `plan` forecasts against measured steps on this machine's CPUs."""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, Contestant, time_in_turns
from benchmarks.record import table
from benchmarks.workloads import make_batch, our_module, small_model, workload
from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.partition import Setup
from ds_minimodel.ops.cpu import has_bf16_products
from ds_minimodel.planning.devices import Device, named
from ds_minimodel.planning.plans import Planner
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.results.render import Notes, Table

STEPS = ("pretrain", "build-mini", "adapt-full", "finetune")
WIDTH, VOCABULARY, TOKENS, LENGTH, ZERO_STAGE = 256, 8000, 512, 128, 1  # tokens of a step on each rank
WITHIN = 0.15

PAGE = f"""Forecasts of time against measured steps
{TOKENS} tokens a rank and step in sequences of {LENGTH}, width {WIDTH}, vocabulary {VOCABULARY:,}, ZeRO {ZERO_STAGE},
one thread a rank. Measured: milliseconds of the fastest step, median and slowest in brackets, of the slowest rank. The
forecast is from what `ds-minimodel calibrate` measured on the same machine just before; its error is that against the
fastest step, as a calibration takes the fastest calls."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="file of `ds-minimodel calibrate`; measured now where not given")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 12], help="default: 4 12")


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of ranks, precision, depth and step."""
    device = device_of(options.device, options.clock)
    precisions = ("fp32", "bf16") if has_bf16_products() else ("fp32",)
    for ranks, precision in itertools.product(options.ranks, precisions):
        with Contestant("plan", ranks=ranks, time_limit=options.time_limit) as contestant:
            for layers, step in itertools.product(options.layers, STEPS):
                how = {"precision": precision, "zero_stage": ZERO_STAGE, "tokens": TOKENS, "seq_length": LENGTH}
                work = small_model(layers, WIDTH, VOCABULARY, step=step, **how)
                found = time_in_turns({step: contestant}, {step: work}, options.repeats, options.clock)[step]
                if "error" in found:
                    yield {"name": f"{step}, {layers} layers, {precision}, {ranks} ranks", **found}
                    break  # its processes have ended
                times = {key: found[key] for key in ("fastest", "seconds", "slowest")}
                forecast = forecast_of(work, ranks, device)
                yield {"step": step, "layers": layers, "precision": precision, "ranks": ranks, **times, **forecast}


def device_of(calibrated: str | None, clock: str) -> Device:
    """What a calibration has measured, this machine's now where none is named."""
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        file = calibrated or str(Path(folder, "device.json"))
        if not calibrated:
            command = [sys.executable, "-m", "ds_minimodel", "calibrate", file, "--clock", clock]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            if subprocess.run(command, env=environment, stdout=sys.stderr).returncode:
                raise UserError("ds-minimodel calibrate: it failed, as the lines above say")
        device = named(file)
        if device.measured is None:
            raise UserError(f"--device {file}: nothing was measured of it; name a file of ds-minimodel calibrate")
        return device


def forecast_of(task: dict[str, Any], ranks: int, device: Device) -> dict[str, Any]:
    """{"forecast": seconds, "bound": what bounds them} of a step, of arguments of training.start."""
    recipe = load_recipe(task["recipe"], task["overrides"])
    work = workload(recipe, task["step"], TOKENS, LENGTH)
    batch, samples = make_batch(work, 0), work.batch_size
    planner = Planner(our_module(work, recipe), lambda _: batch, task["precision"], device)
    setup = Setup(ZERO_STAGE, task["precision"], samples * ranks, samples, ranks, ranks, 1 << 40)
    seconds, parts = planner.seconds(planner.plan(setup))
    return {"forecast": seconds, "bound": parts["bound"]}


def tables(rows: Sequence[dict[str, Any]]) -> list[Notes | Table]:
    errors = sorted(abs(row["forecast"] / row["fastest"] - 1) for row in rows)
    within = sum(error <= WITHIN for error in errors)
    lines = [
        [
            row["step"],
            row["layers"],
            row["precision"],
            row["ranks"],
            f"{1e3 * row['fastest']:.0f} ({1e3 * row['seconds']:.0f}, {1e3 * row['slowest']:.0f})",
            f"{1e3 * row['forecast']:.0f}",
            f"{100 * (row['forecast'] / row['fastest'] - 1):+.0f}",
            row["bound"],
        ]
        for row in rows
    ]
    columns = ["step", "layers", "precision", "ranks", "measured, ms", "forecast, ms", "error, %", "bound by"]
    summary = (
        f"{within} of {len(rows)} steps ({within / len(rows):.0%}) are within {WITHIN:.0%}; the median of the errors "
        f"is {statistics.median(errors):.0%}, the largest {errors[-1]:.0%}."
    )
    return [Notes([summary]), table("Steps", columns, lines)]
