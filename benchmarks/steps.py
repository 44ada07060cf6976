"""Training steps of a recipe against their peers."""

import argparse
import importlib.util
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from benchmarks import device
from benchmarks.processes import Contestant, Failed, time_in_turns
from benchmarks.record import table
from benchmarks.training import IN_ENGINE, PEERS
from benchmarks.workloads import PAPER, STEPS, TimedStep, workload
from ds_minimodel.common.errors import UserError
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.launch.hosts import CPU
from ds_minimodel.ops.cpu import has_bf16_products
from ds_minimodel.report.render import Table

PAGE = """Training steps against their peers
Tokens/s of whole optimizer steps without padding, medians of interleaved rounds in one run, the
same batches for all. TFLOP/s by the paper's formulas, so that work which is not done counts for the
one who spares it; share: of the best matrix product measured in between. Ratio: of ds_minimodel's
tokens/s to this row's.

compiled: ds_minimodel with each layer under torch.compile; reference: with torch's operators. hf:
Hugging Face's model of the kind with SDPA (autocast in bf16 and fp16), torch's fused AdamW, the
same part frozen, the same malloc settings, rows padded to the longest of the batch; LoRA
(adapt-lora; extend-lora: beside new tokens alone, peft's trainable_token_indices) by peft, which
has an A for each of queries, keys and values, and of gate and up; hf-untuned: without those
settings; hf-compiled: under torch.compile (on CPUs eager attention, our choice of library for
fp32); hf-deepspeed: SDPA in our engine."""


def arguments(parser: argparse.ArgumentParser) -> None:
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--recipe", default=PAPER, help="its sizes; default: the paper's")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="replace values of the recipe"
    )
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="default: all")
    parser.add_argument(
        "--against",
        nargs="*",
        choices=PEERS,
        default=["reference", "hf", "hf-untuned", "hf-compiled"],
        help="default: all but compiled and hf-deepspeed",
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=["fp32", "bf16", "fp16"],
        default=["bf16" if on_gpu else "fp32"],
        help="default: %(default)s",
    )
    parser.add_argument(
        "--zero", nargs="+", type=int, choices=range(4), default=[1], help="ZeRO stages; default: 1"
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="one contestant after the other, each with the device to itself",
    )
    parser.add_argument(
        "--ranks", type=int, default=1, help="of those that run in our engine; default: 1"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="of a process on the CPU; default: 1"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=32768 if on_gpu else 2048,
        help="of a step on each rank; default: %(default)s",
    )
    parser.add_argument("--seq-length", type=int, help="default: the recipe's; 128 for finetune")
    parser.add_argument(
        "--shortest",
        type=int,
        help="tokens of the shortest row in finetune; default: none is shorter",
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each precision, step and ZeRO stage."""
    recipe = load_recipe(options.recipe, options.set)
    if {*options.against} - {"reference"} and importlib.util.find_spec("transformers") is None:
        raise UserError(
            "transformers is not installed; pip install 'ds_minimodel[benchmark]', or --against "
            "reference"
        )
    for precision, step, zero_stage in itertools.product(
        options.precision, options.steps, options.zero
    ):
        work = workload(recipe, step, options.tokens, options.seq_length, options.shortest)
        label = f"{step} {precision} ZeRO {zero_stage}"
        try:
            found, peaks = time_step(options, step, precision, zero_stage)
        except Failed as failure:
            yield {"name": label, "error": str(failure)}
            continue
        yield row_of(work, precision, zero_stage, options.ranks, found) | peaks


def time_step(
    options: argparse.Namespace, step: str, precision: str, zero_stage: int
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """({contestant: summary or {"error"}}, peaks of the device in between); Failed where these
    cannot be measured.
    """
    task = {
        "recipe": options.recipe,
        "overrides": options.set,
        "precision": precision,
        "zero_stage": zero_stage,
    }
    task |= {name: vars(options)[name] for name in ("tokens", "seq_length", "shortest")}
    peaks: list[dict[str, float]] = []
    names = ["ds_minimodel", *options.against]
    found: dict[str, dict[str, Any]] = {}

    def contestant(name: str) -> Contestant:
        ranks = options.ranks if name in IN_ENGINE else 1
        settings = {} if name == "hf-untuned" else CPU
        return Contestant(name, options.threads, ranks, settings, options.time_limit)

    with contestant("peaks") as of_device:

        def measure_peaks() -> None:
            peaks.extend(of_device.ask(device.peaks, precision=precision, clock=options.clock))

        for together in [[name] for name in names] if options.apart else [names]:
            with ExitStack() as stack:
                running = {name: stack.enter_context(contestant(name)) for name in together}
                works = {name: {"contestant": name, "step": step, **task} for name in running}
                found |= time_in_turns(
                    running, works, options.repeats, options.clock, measure_peaks
                )
            if options.apart:  # the row follows when all have had their turn
                print(json.dumps({name: found[name] for name in together}), flush=True)
    return found, {
        key: statistics.median(peak[key] for peak in peaks) for key in ("matmul", "copy")
    }


def row_of(
    work: TimedStep, precision: str, zero_stage: int, ranks: int, found: dict[str, Any]
) -> dict[str, Any]:
    """What was timed, and the seconds of each, or why it failed."""
    cost = work.cost()
    imitated = precision == "bf16" and not torch.cuda.is_available() and not has_bf16_products()
    return {
        "step": work.name,
        "layers": work.body.num_layers,
        "width": work.body.hidden_size,
        "vocabulary": work.vocab_size,
        "batch_size": work.batch_size,
        "lengths": sorted({work.shortest, work.seq_length}),
        "tokens": work.tokens,
        "formula": cost.formula,
        "executed": cost.executed,
        "precision": "bf16 in fp32" if imitated else precision,
        "zero_stage": zero_stage,
        "ranks": ranks,
        "contestants": found,
    }


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    return [
        table(
            "Tokens a second",
            [
                "step",
                "rows",
                "engine",
                "contestant",
                "tokens/s",
                "TFLOP/s",
                "share",
                "ratio",
                "GiB",
            ],
            [line for row in rows for line in lines_of(row)],
        )
    ]


def lines_of(row: dict[str, Any]) -> Iterator[list[str]]:
    """The lines of a row's contestants."""

    def ranks_of(name: str) -> int:
        return row["ranks"] if name in IN_ENGINE else 1

    ours = row["contestants"].get("ds_minimodel")
    for name, one in row["contestants"].items():
        ranks = ranks_of(name)
        what = [
            f"{row['step']}, {row['layers']} layers",
            f"{row['batch_size']} × {' to '.join(map(str, row['lengths']))}",
            f"{row['precision']}, ZeRO {row['zero_stage']}"
            + (f", {ranks} ranks" if ranks > 1 else ""),
            name,
        ]
        if "error" in one:
            yield [*what, f"failed: {one['error']}", "", "", "", ""]
            continue
        seconds = one["seconds"]
        is_peer = ours and "error" not in ours and one is not ours
        ratio = ranks_of("ds_minimodel") / ours["seconds"] * seconds / ranks if is_peer else None
        yield [
            *what,
            f"{ranks * row['tokens'] / seconds:,.0f}",
            f"{ranks * row['formula'] / seconds / 1e12:.3g}",
            f"{row['formula'] / seconds / row['matmul']:.0%}",
            f"{ratio:.2f}" if ratio else "",
            f"{one['memory_bytes'] / 2**30:.2f}",
        ]
