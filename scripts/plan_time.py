#!/usr/bin/env python3
"""Hold the time that `plan` predicts against measured steps on this machine.

    python scripts/plan_time.py                  # some ten minutes on 2 idle cores
    python scripts/plan_time.py --clock cpu      # on a machine that others use too: time that the processes ran
    python scripts/plan_time.py --device FILE    # as an earlier `ds-minimodel calibrate FILE` measured it

Steps 1, 1b, 2 and 3 over 4 and 12 layers, fp32 and, where the CPU has its products, bf16, on 1, 2 and 4 ranks. Writes
OUT.json and OUT.md (benchmarks/plan_time by default). A rank has one thread.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ds_minimodel.planning.plans import Planner

STEPS = {"pretrain": "1", "build-mini": "1b", "adapt-full": "2", "finetune": "3"}
LAYERS, RANKS = (4, 12), (1, 2, 4)
WIDTH, VOCABULARY, TOKENS, LENGTH = 256, 8000, 512, 128  # tokens of a step on each rank
WITHIN = 0.15


def recipe_of(layers: int, precision: str, zero_stage: int) -> Any:
    from ds_minimodel.recipe.reading import load_recipe

    model = f"{{num_layers: {layers}, hidden_size: {WIDTH}, num_heads: 4, ffn_size: {4 * WIDTH}, max_positions: 512}}"
    return load_recipe(
        ROOT / "recipes/paper.yaml",
        [
            f"model={model}",
            f"mini={{depth: {layers // 2}, new_layers: {layers // 4}, depths: [{layers // 2}, {layers}]}}",
            f"tokenizer.vocab_size={VOCABULARY}",
            f"engine.precision={precision}",
            f"engine.zero_stage={zero_stage}",
            "engine.micro_batch_size=1000",
        ],
    )


def measure(precision: str, zero_stage: int, repeats: int, clock_name: str, of_layers: Sequence[int]) -> None:
    """As a rank: take steps of every kind; rank 0 prints {step, layers: the slowest rank's seconds, step by step}."""
    from ds_minimodel.benchmark.workloads import make_batch, our_module, resolved_run, workload
    from ds_minimodel.engine.loop import optimizer_step
    from ds_minimodel.engine.ranks.world import join_ranks
    from ds_minimodel.engine.zero.engine import build_engine, destroy
    from ds_minimodel.planning.calibration import CLOCKS

    world, clock, found = join_ranks(), CLOCKS[clock_name], {}
    for layers in of_layers:
        recipe = recipe_of(layers, precision, zero_stage)
        for step in STEPS:
            work = workload(recipe, step, TOKENS, LENGTH)
            run = resolved_run(work, recipe, world)
            engine = build_engine(our_module(work, recipe), run, world)
            seconds = []
            for number in range(repeats + 1):  # one to warm up
                batch = make_batch(work, number * world.size + world.rank)
                start = clock()
                world.sum(batch["count"])  # as the loop does
                optimizer_step(engine, [batch], batch["count"] * world.size, run, world, number)
                seconds.append(clock() - start)
            destroy(engine)
            found[f"{step} {layers}"] = [
                max(each) for each in zip(*world.gather(partial(list, seconds[1:])), strict=True)
            ]
            if world.is_main:
                print(
                    step, layers, precision, world.size, statistics.median(found[f"{step} {layers}"]), file=sys.stderr
                )
    if world.is_main:
        print(json.dumps(found))


def measured(precision: str, ranks: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """What `measure` prints on `ranks` ranks."""
    from ds_minimodel.engine.ranks.launch import CPU
    from ds_minimodel.engine.ranks.rendezvous import free_port

    environment = os.environ | CPU | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if ranks > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--as-rank", precision, "--repeats", str(options.repeats)]
    command += ["--clock", options.clock, "--zero", str(options.zero), "--layers", *map(str, options.layers)]
    with tempfile.TemporaryFile("w+") as out:
        processes = [
            subprocess.Popen(
                command,
                stdout=out if rank == 0 else subprocess.DEVNULL,
                env=environment
                | ({"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)} if ranks > 1 else {}),
            )
            for rank in range(ranks)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit(f"plan_time.py: ranks ended with {codes}")
        out.seek(0)
        return json.loads(out.read().splitlines()[-1])


@functools.cache
def planner_of(precision: str, layers: int, step: str, zero_stage: int, file: str) -> "tuple[Planner, int]":
    """The planner of a step, and the samples that a rank has of it."""
    from ds_minimodel.benchmark.workloads import make_batch, our_module, workload
    from ds_minimodel.planning.devices import named
    from ds_minimodel.planning.plans import Planner

    recipe = recipe_of(layers, precision, zero_stage)
    work = workload(recipe, step, TOKENS, LENGTH)
    batch = make_batch(work, 0)
    return Planner(our_module(work, recipe), lambda _: batch, precision, named(file)), work.batch_size


def predicted(row: dict[str, Any], zero_stage: int, file: str) -> dict[str, Any]:
    """What is predicted of a measured row."""
    from ds_minimodel.engine.partition import Setup

    precision, ranks = row["precision"], row["ranks"]
    planner, samples = planner_of(precision, row["layers"], row["step"], zero_stage, file)
    setup = Setup(zero_stage, precision, samples * ranks, samples, ranks, ranks, 1 << 40)
    seconds, parts = planner.seconds(planner.plan(setup))
    return {"seconds": seconds, **parts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="default: wall")
    parser.add_argument("--device", help="file of `calibrate`; measured now where not given")
    parser.add_argument("--repeats", type=int, default=7, help="steps of each kind; default: 7")
    parser.add_argument("--zero", type=int, choices=range(4), default=1, help="ZeRO stage; default: 1")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="default: 1 2 4")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="default: 4 12")
    parser.add_argument("--again", action="store_true", help="measure nothing: predict what OUT.json has measured")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/plan_time")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        measure(options.as_rank, options.zero, options.repeats, options.clock, options.layers)
        return 0
    from ds_minimodel.common.files import read_json, write_json
    from ds_minimodel.ops.cpu import has_bf16_products
    from ds_minimodel.planning.devices import named

    out = options.out.with_suffix(".json")
    file = options.device or str(options.out.with_name(f"{options.out.name}_device.json"))
    if not options.device and not options.again:
        command = [sys.executable, "-m", "ds_minimodel", "calibrate", file, "--clock", options.clock]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)})
    device = named(file)
    assert device.measured is not None
    facts, load = {}, [os.getloadavg()[0]]
    rows: list[dict[str, Any]] = []
    if options.again:
        facts = read_json(out)
        rows = facts.pop("rows")
    for ranks, precision in itertools.product(
        () if options.again else options.ranks, ("fp32", "bf16") if has_bf16_products() else ("fp32",)
    ):
        found = measured(precision, ranks, options)
        load.append(os.getloadavg()[0])
        rows += [
            {
                "step": step,
                "layers": layers,
                "precision": precision,
                "ranks": ranks,
                "measured": found[f"{step} {layers}"],
            }
            for layers, step in itertools.product(options.layers, STEPS)
        ]
        facts = {
            "command": " ".join(["python scripts/plan_time.py", *sys.argv[1:]]),
            "device": device.name,
            "calibrated": device.source,
            "clock": options.clock,
            "zero_stage": options.zero,
            "load": f"{min(load):.1f} to {max(load):.1f} on {os.cpu_count()} cores",
        }
        write_json(out, {**facts, "rows": rows})
    for row in rows:
        row["predicted"] = predicted(row, facts["zero_stage"], file)
    write_json(out, {**facts, "rows": rows})
    options.out.with_suffix(".md").write_text(page(facts, rows), encoding="utf-8")
    print(page(facts, rows))
    return 0


def error_of(row: dict[str, Any]) -> float:
    """(predicted - measured) / measured, of the fastest step, as `calibrate` takes the fastest calls."""
    return row["predicted"]["seconds"] / min(row["measured"]) - 1


def page(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    errors = sorted(abs(error_of(row)) for row in rows)
    within = sum(error <= WITHIN for error in errors)
    lines = [
        "# Time predicted by `plan` against measured steps",
        "",
        "; ".join(f"{key}: {value}" for key, value in facts.items()) + ".",
        "",
        f"{within} of {len(rows)} steps ({100 * within / len(rows):.0f} %) are within {100 * WITHIN:.0f} %; the median "
        f"of the errors is {100 * statistics.median(errors):.0f} %, the largest {100 * errors[-1]:.0f} %. "
        f"{TOKENS} tokens a rank and step in sequences of {LENGTH}, width {WIDTH}, vocabulary {VOCABULARY}. Measured: "
        "milliseconds of the fastest step, median and slowest in brackets, of the slowest rank; by the clock `cpu`, "
        "time that its process ran.",
        "",
        "| step | layers | precision | ranks | measured, ms | predicted, ms | error, % | bound by |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        seconds, said = row["measured"], row["predicted"]
        spread = f"({1e3 * statistics.median(seconds):.0f}, {1e3 * max(seconds):.0f})"
        lines.append(
            f"| {STEPS[row['step']]} {row['step']} | {row['layers']} | {row['precision']} | {row['ranks']} "
            f"| {1e3 * min(seconds):.0f} {spread} | {1e3 * said['seconds']:.0f} "
            f"| {100 * error_of(row):+.0f} | {said['bound']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
