#!/usr/bin/env python3
"""Time the training steps of a recipe and the kernels against their peers, all in one run on this machine.

    python scripts/throughput.py                      # RoBERTa-base sizes, every step, this device's defaults
    python scripts/throughput.py --steps adapt-mini --precision fp32 bf16 --zero 0 1 --against hf hf-compiled
    python scripts/throughput.py recipes/quickstart.yaml model.dropout=0 --no-kernels

Leaves throughput.json, .md and .png in benchmarks/DEVICE-DATE (or --out). What each contestant is:
ds_minimodel/benchmark/contestants.py; how it is timed: ds_minimodel/benchmark/rounds.py.
"""

import argparse
import datetime
import itertools
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ds_minimodel.benchmark.record import Record
    from ds_minimodel.recipe.schema import Recipe

# tokens a step, precisions and repeats where no option names them
DEFAULTS = {"cpu": (2048, ["fp32"], 5), "cuda": (32768, ["bf16"], 15)}


def main() -> int:
    """Time what the options name; 1 if anything failed."""
    options = _options()
    import torch

    from ds_minimodel.benchmark.peaks import device_name
    from ds_minimodel.benchmark.record import Record
    from ds_minimodel.common.errors import UserError
    from ds_minimodel.recipe.reading import load_recipe

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens, precisions, repeats = DEFAULTS[device]
    options.tokens, options.repeats = options.tokens or tokens, options.repeats or repeats
    try:
        recipe = load_recipe(options.recipe, options.overrides)
    except UserError as error:
        sys.exit(f"throughput.py: {error}")
    name = device_name()
    short = re.sub("[^A-Za-z0-9]+", "-", name).strip("-").lower()
    out = options.out or ROOT / "benchmarks" / f"{short}-{datetime.date.today()}"
    record = Record(
        out,
        name,
        device,
        {
            "threads": options.threads,
            "repeats": options.repeats,
            "clock": options.clock,
            "command": " ".join(["python scripts/throughput.py", *sys.argv[1:]]),
        },
    )
    logs = Path(tempfile.mkdtemp(prefix="throughput-"))
    task = {
        "recipe": str(options.recipe),
        "overrides": options.overrides,
        "tokens": options.tokens,
        "seq_length": options.seq_length,
        "threads": options.threads,
        "clock": options.clock,
    }
    for precision in options.precision or precisions:
        _time_steps(options, recipe, {**task, "precision": precision}, record, logs)
        _time_kernels(options, {**task, "precision": precision}, record, logs)
    print((Path(out) / "throughput.md").read_text(encoding="utf-8"))
    return 1 if record.value["failures"] else 0


def _time_steps(options: argparse.Namespace, recipe: "Recipe", task: dict, record: "Record", logs: Path) -> None:
    from ds_minimodel.benchmark.record import label_of
    from ds_minimodel.benchmark.rounds import Failed, time_in_turns
    from ds_minimodel.benchmark.workloads import workload

    for step, zero_stage in itertools.product(options.steps, options.zero):
        work = workload(recipe, step, options.tokens, options.seq_length)
        one = {**task, "workload": step, "zero_stage": zero_stage}
        try:
            found, peaks = time_in_turns(
                ["ds_minimodel", *options.against], one, options.ranks, options.repeats, logs, options.time_limit, _say
            )
            record.add_step(work, one, options.ranks, found, peaks)
        except Failed as failure:
            record.add_failure(label_of(one), failure)
        record.save()


def _time_kernels(options: argparse.Namespace, task: dict, record: "Record", logs: Path) -> None:
    from ds_minimodel.benchmark.rounds import Failed, time_kernels

    for op in options.kernels:
        _say(f"kernel {op} {task['precision']}")
        try:
            record.value["kernels"] += time_kernels(
                op, task, options.repeats, options.compiled, logs, options.time_limit
            )
        except Failed as failure:
            record.add_failure(f"{op} {task['precision']}", failure)
        record.save()


def _options() -> argparse.Namespace:
    from ds_minimodel.benchmark import KERNELS, PEERS, STEPS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recipe", nargs="?", default=ROOT / "recipes/paper.yaml", help="sizes (default: recipes/paper.yaml)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="replace a value of the recipe")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS, help="default: all")
    parser.add_argument(
        "--against",
        nargs="*",
        choices=PEERS,
        default=["reference", "hf", "hf-untuned", "hf-compiled"],
        help="default: all but hf-deepspeed",
    )
    parser.add_argument(
        "--precision", nargs="+", choices=["fp32", "bf16", "fp16"], help="default: fp32 on a CPU, bf16 on a GPU"
    )
    parser.add_argument("--zero", nargs="+", type=int, choices=range(4), default=[1], help="ZeRO stages")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of those that run in our engine")
    parser.add_argument("--tokens", type=int, help="tokens a rank and step (default: 2,048 on a CPU, 32,768 on a GPU)")
    parser.add_argument("--seq-length", type=int, help="default: the recipe's; 128 for finetune")
    parser.add_argument("--threads", type=int, default=1, help="threads of a process on the CPU")
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: time that the process ran, for one thread on a machine that others use too",
    )
    parser.add_argument("--repeats", type=int, help="default: 5 on a CPU, 15 on a GPU")
    parser.add_argument("--kernels", nargs="*", choices=KERNELS, default=KERNELS, help="operators; none with no name")
    parser.add_argument(
        "--no-compiled", dest="compiled", action="store_false", help="kernels: not against torch.compile"
    )
    parser.add_argument("--time-limit", type=float, default=600, help="seconds for one answer of a contestant")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options, rest = parser.parse_known_args()
    if any(text.startswith("-") or "=" not in text for text in rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.overrides += rest
    return options


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
