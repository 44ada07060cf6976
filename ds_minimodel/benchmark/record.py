"""Record of a benchmark: circumstances, rows and failures, as JSON, as a Markdown page and as a chart.

It is written anew after each part, so that a kill loses little.
"""

import datetime
import importlib.metadata
import io
import os
import platform
import subprocess
from pathlib import Path

from ds_minimodel import __version__
from ds_minimodel.benchmark import IN_ENGINE
from ds_minimodel.benchmark.workloads import Workload
from ds_minimodel.common.files import atomic_write, write_json
from ds_minimodel.ops.cpu import has_bf16_products
from ds_minimodel.results.render import Block, Cell, Facts, Heading, Plot, Table, to_markdown

PACKAGES = ("torch", "deepspeed", "transformers", "numpy", "apex", "liger_kernel")


class Record:
    """Rows as they are measured; `save` writes throughput.json, throughput.md and throughput.png into `folder`."""

    def __init__(self, folder: str | Path, device_name: str, device_type: str, settings: dict[str, object]) -> None:
        self.folder = Path(folder)
        self.value: dict = {
            "circumstances": circumstances(device_name) | settings,
            "device_type": device_type,
            "steps": [],
            "kernels": [],
            "failures": {},
        }

    def save(self) -> None:
        """Write the record as it is now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "throughput.json", self.value)
        with atomic_write(self.folder / "throughput.md", "w") as file:
            file.write(page_of(self.value))
        drawn = [row for row in self.value["steps"] if any("error" not in one for one in row["contestants"].values())]
        if drawn and _version("matplotlib") != "not installed":
            with atomic_write(self.folder / "throughput.png") as file:
                file.write(chart(drawn))

    def _products(self, precision: str) -> str:
        """Precision of the matrix products: a CPU without bf16 products makes them in fp32."""
        imitated = precision == "bf16" and self.value["device_type"] == "cpu" and not has_bf16_products()
        return "bf16 in fp32" if imitated else precision

    def add_failure(self, what: str, why: object) -> None:
        """Note why a part of the benchmark has no figures."""
        self.value["failures"][what] = str(why)

    def add_step(self, work: Workload, task: dict, ranks: int, found: dict[str, dict], peaks: dict[str, float]) -> None:
        """Add one workload under one precision and ZeRO stage: what rounds.time_in_turns gave."""
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


def label_of(task: dict) -> str:
    """Name of a timed step in the list of failures."""
    return f"{task['workload']} {task['precision']} ZeRO {task['zero_stage']}"


def circumstances(device_name: str) -> dict[str, object]:
    """What a benchmark ran on, and when: device, date, commit, versions, cores."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return {
        "device": device_name,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": f"ds_minimodel {__version__}, Python {platform.python_version()}, {versions}",
        "cores": len(os.sched_getaffinity(0)),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Commit of the sources, with a mark where they differ from it; "unknown" outside a checkout."""
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=root, capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


# --- the page and its chart

_COLORS = {
    "ds_minimodel": "#D55E00",
    "reference": "#E69F00",
    "hf": "#0072B2",
    "hf-untuned": "#56B4E9",
    "hf-compiled": "#009E73",
    "hf-deepspeed": "#CC79A7",
}
_NOTES = [
    "Tokens/s of whole optimizer steps, medians of interleaved repeats in one run, the same batches for all. "
    "TFLOP/s by the paper's formulas, so that work which is not done counts for the one who spares it; share: of the "
    "best matrix product measured in between. Ratio: of ds_minimodel's tokens/s to this row's.",
    "reference: ds_minimodel with torch's operators. hf: Hugging Face's RoBERTa with SDPA (autocast in bf16 and fp16), "
    "torch's fused AdamW, the same malloc settings; hf-untuned: without them; hf-compiled: eager attention under "
    "torch.compile, our choice of library for fp32; hf-deepspeed: SDPA in our engine.",
]
_KERNEL_NOTES = [
    "Forward and backward, medians of interleaved repeats. Copy: share of the bandwidth of a large copy, "
    "counting the fewest bytes that must move; above 100 % where tensors stay in the caches."
]


def page_of(record: dict) -> str:
    """Markdown of a record, without its chart's file."""
    blocks: list[Block] = [Facts({label: str(value) for label, value in record["circumstances"].items()})]
    if record["steps"]:
        blocks += [
            Heading("Training steps"),
            _step_table(record["steps"]),
            Plot("throughput.png", b"", "Tokens a second of each training step"),
        ]
    if record["kernels"]:
        blocks += [Heading("Kernels"), _kernel_table(record["kernels"])]
    if record["failures"]:
        blocks += [Heading("What failed"), Facts(record["failures"])]
    return to_markdown("Throughput", blocks)


def _step_table(rows: list[dict]) -> Table:
    lines = []
    for row in rows:
        ours = row["contestants"].get("ds_minimodel", {}).get("tokens_per_second")
        for name, found in row["contestants"].items():
            ranks = f", {found['ranks']} ranks" if found.get("ranks", 1) > 1 else ""
            start = [
                Cell(f"{row['step']}, {row['layers']} layers"),
                Cell(f"{row['precision']}, ZeRO {row['zero_stage']}{ranks}"),
                Cell(name, best=name == "ds_minimodel"),
            ]
            if "error" in found:
                lines.append([*start, Cell("failed"), *[Cell("")] * 6])
                continue
            ratio = ours / found["tokens_per_second"] if ours and name != "ds_minimodel" else None
            lines.append(
                [
                    *start,
                    Cell(f"{found['tokens_per_second']:,.0f}"),
                    Cell(f"{found['samples_per_second']:,.2f}"),
                    Cell(f"{found['tflops']:.3g}"),
                    Cell(f"{found['matmul_share']:.0%}"),
                    Cell(f"{ratio:.2f}" if ratio else ""),
                    Cell(f"{found['memory_bytes'] / 2**30:.2f}"),
                    Cell(f"{found['wire_bytes'] / 2**20:,.0f}"),
                ]
            )
    return Table(
        "Tokens a second",
        ["Step", "Engine", "Contestant", "tokens/s", "samples/s", "TFLOP/s", "share", "ratio", "GiB", "MiB sent"],
        lines,
        notes=_NOTES,
    )


def _kernel_table(rows: list[dict]) -> Table:
    others = list(dict.fromkeys(name for row in rows for name in row["seconds"] if name != "ds_minimodel"))
    lines = []
    for row in rows:
        seconds = row["seconds"]
        ours = seconds["ds_minimodel"]
        lines.append(
            [
                Cell(row["op"]),
                Cell(" x ".join(map(str, row["shape"]))),
                Cell(row["variant"]),
                Cell(row["precision"]),
                Cell(f"{ours * 1e6:,.0f}"),
                Cell(f"{row['copy_share']:.0%}" if row["copy_share"] else ""),
                *(Cell(f"{seconds[name] / ours:.2f}" if name in seconds else "") for name in others),
            ]
        )
    return Table(
        "Times as fast as others",
        ["Operator", "Shape", "Variant", "Precision", "microseconds", "copy", *others],
        lines,
        notes=_KERNEL_NOTES,
    )


def chart(rows: list[dict]) -> bytes:
    """PNG with one group of bars for each row of steps."""
    import matplotlib
    import matplotlib.figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = list(dict.fromkeys(name for row in rows for name in row["contestants"]))
    with matplotlib.rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}):
        figure = matplotlib.figure.Figure(figsize=(1.6 + 1.5 * len(rows), 3.8), dpi=192, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            found = [
                (group, row["contestants"][name]["tokens_per_second"])
                for group, row in enumerate(rows)
                if "tokens_per_second" in row["contestants"].get(name, {})
            ]
            axes.bar(
                [group - 0.4 + (place + 0.5) * width for group, _ in found],
                [speed for _, speed in found],
                width,
                color=_COLORS[name],
                label=name,
            )
        axes.set_xticks(
            range(len(rows)), [f"{row['step']}\n{row['precision']}, ZeRO {row['zero_stage']}" for row in rows]
        )
        axes.set_ylabel("tokens/s")
        figure.legend(loc="outside upper left", frameon=False, ncols=len(names))
        png = io.BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()
