"""The benchmark's record: circumstances, rows, failures; written anew after each part, so that a kill loses little."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from ds_minimodel import __version__
from ds_minimodel.benchmark import IN_ENGINE
from ds_minimodel.benchmark.page import chart, page
from ds_minimodel.benchmark.predictions import BF16_IN_FP32
from ds_minimodel.common.files import atomic_write, write_json
from ds_minimodel.ops.cpu import has_bf16_products

PACKAGES = ("torch", "deepspeed", "transformers", "numpy", "apex", "liger_kernel")


class Record:
    """Rows as they come; `save` writes throughput.json, throughput.md and throughput.png into `folder`."""

    def __init__(self, folder, device_name, device_type, settings):
        self.folder = Path(folder)
        self.value = {
            "circumstances": _circumstances(device_name) | settings,
            "device_type": device_type,
            "steps": [],
            "kernels": [],
            "failures": {},
        }

    def save(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "throughput.json", self.value)
        with atomic_write(self.folder / "throughput.md", "w") as file:
            file.write(page(self.value))
        drawn = [row for row in self.value["steps"] if any("error" not in one for one in row["contestants"].values())]
        if drawn and _version("matplotlib") != "not installed":
            with atomic_write(self.folder / "throughput.png") as file:
                file.write(chart(drawn))

    def _products(self, precision):
        """What matrix products are made in, as predictions.py calls it."""
        imitated = precision == "bf16" and self.value["device_type"] == "cpu" and not has_bf16_products()
        return BF16_IN_FP32 if imitated else precision

    def add_failure(self, what, why):
        self.value["failures"][what] = str(why)

    def add_step(self, work, task, ranks, found, peaks):
        """One workload under one precision and ZeRO stage: what rounds.time_in_turns gave."""
        cost = work.cost()
        for name, one in found.items():
            if "error" in one:
                self.add_failure(f"{label_of(task)} {name}", one["error"])
                continue
            world = ranks if name in IN_ENGINE else 1
            one |= {
                "ranks": world,
                "tokens_per_second": world * work.tokens / one["seconds"],
                "samples_per_second": world * work.batch_size / one["seconds"],
                "tflops": world * cost.formula / one["seconds"] / 1e12,
                "executed_tflops": world * cost.executed / one["seconds"] / 1e12,
                "matmul_share": cost.formula / one["seconds"] / peaks["matmul"],
            }
        self.value["steps"].append(
            {
                "step": work.name,
                "layers": work.body.num_layers,
                "hidden_size": work.body.hidden_size,
                "batch_size": work.batch_size,
                "seq_length": work.seq_length,
                "num_read": work.num_read,
                "vocab_size": work.vocab_size,
                "precision": task["precision"],
                "products": self._products(task["precision"]),
                "zero_stage": task["zero_stage"],
                "ranks": ranks,
                "matmul_peak_tflops": peaks["matmul"] / 1e12,
                "copy_gigabytes_per_second": peaks["copy"] / 1e9,
                "contestants": found,
            }
        )


def label_of(task):
    return f"{task['workload']} {task['precision']} ZeRO {task['zero_stage']}"


def _circumstances(device_name):
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return {
        "device": device_name,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": f"ds_minimodel {__version__}, Python {platform.python_version()}, {versions}",
        "cores": len(os.sched_getaffinity(0)),
    }


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit():
    """The commit of the sources, with a mark where they differ from it; "unknown" outside a checkout."""
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=root, capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
