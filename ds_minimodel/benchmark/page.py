"""The benchmark's record as a Markdown page and a chart."""

import io

from ds_minimodel.benchmark import predictions
from ds_minimodel.results.render import Facts, Figure, Heading, to_markdown
from ds_minimodel.results.tables import Cell, Table

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
    "best matrix product measured in between. Ratio: of ds_minimodel's tokens/s to this row's; predicted: what that "
    "was expected to be before.",
    "reference: ds_minimodel with torch's operators. hf: Hugging Face's RoBERTa with SDPA (autocast in bf16 and fp16), "
    "torch's fused AdamW, the same malloc settings; hf-untuned: without them; hf-compiled: eager attention under "
    "torch.compile, our choice of library for fp32; hf-deepspeed: SDPA in our engine.",
]
_KERNEL_NOTES = [
    "Forward and backward, medians of interleaved repeats. Copy: share of the bandwidth of a large copy, "
    "counting the fewest bytes that must move; above 100 % where tensors stay in the caches."
]


def page(record):
    """Markdown of a record, without its chart's file."""
    blocks = [Facts({label: str(value) for label, value in record["circumstances"].items()})]
    if record["steps"]:
        blocks += [
            Heading("Training steps"),
            _step_table(record["steps"], record["device_type"]),
            Figure("throughput.png", b"", "Tokens a second of each training step"),
        ]
    if record["kernels"]:
        blocks += [Heading("Kernels"), _kernel_table(record["kernels"])]
    if record["failures"]:
        blocks += [Heading("What failed"), Facts(record["failures"])]
    return to_markdown("Throughput", blocks)


def _step_table(rows, device_type):
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
                lines.append([*start, Cell("failed"), *[Cell("")] * 8])
                continue
            share, predicted = _predicted(row, name, device_type)
            ratio = ours / found["tokens_per_second"] if ours and name != "ds_minimodel" else None
            lines.append(
                [
                    *start,
                    Cell(f"{found['tokens_per_second']:,.0f}"),
                    Cell(f"{found['samples_per_second']:,.2f}"),
                    Cell(f"{found['tflops']:.3g}"),
                    Cell(f"{found['matmul_share']:.0%}"),
                    Cell(f"{share:.0%}" if share else ""),
                    Cell(f"{ratio:.2f}" if ratio else ""),
                    Cell(f"{predicted:.2f}" if predicted else ""),
                    Cell(f"{found['memory_bytes'] / 2**30:.2f}"),
                    Cell(f"{found['wire_bytes'] / 2**20:,.0f}"),
                ]
            )
    return Table(
        "Tokens a second",
        [
            "Step",
            "Engine",
            "Contestant",
            "tokens/s",
            "samples/s",
            "TFLOP/s",
            "share",
            "predicted",
            "ratio",
            "predicted",
            "GiB",
            "MiB sent",
        ],
        lines,
        notes=_NOTES,
    )


def _predicted(row, name, device_type):
    """Share of the best matrix product for ours, ratio for the others; None where nothing was predicted."""
    if row["hidden_size"] != 768:  # both are for RoBERTa-base sizes
        return None, None
    if name == "ds_minimodel":
        return predictions.MATMUL_SHARES.get((device_type, row["step"])), None
    return None, predictions.STEPS.get((row["step"], row["products"], name)) if device_type == "cpu" else None


def _kernel_table(rows):
    others = list(dict.fromkeys(name for row in rows for name in row["seconds"] if name != "ds_minimodel"))
    lines = []
    for row in rows:
        seconds = row["seconds"]
        ours = seconds["ds_minimodel"]
        predicted = predictions.KERNELS.get((row["op"], row["precision"]))
        lines.append(
            [
                Cell(row["op"]),
                Cell(" x ".join(map(str, row["shape"]))),
                Cell(row["variant"]),
                Cell(row["precision"]),
                Cell(f"{ours * 1e6:,.0f}"),
                Cell(f"{row['copy_share']:.0%}" if row["copy_share"] else ""),
                *(Cell(f"{seconds[name] / ours:.2f}" if name in seconds else "") for name in others),
                Cell(f"{predicted:.2f}" if predicted else ""),
            ]
        )
    return Table(
        "Times as fast as others",
        ["Operator", "Shape", "Variant", "Precision", "microseconds", "copy", *others, "predicted over torch"],
        lines,
        notes=_KERNEL_NOTES,
    )


def chart(rows):
    """PNG with one group of bars for each row of steps."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    names = list(dict.fromkeys(name for row in rows for name in row["contestants"]))
    with rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Canvas(figsize=(1.6 + 1.5 * len(rows), 3.8), dpi=192, layout="constrained")
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
