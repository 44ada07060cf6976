#!/usr/bin/env python3
"""Time threads, ranks and spins of OpenMP's threads against each other on this machine's CPUs.

    python scripts/threads.py                  # some twenty minutes on 2 idle cores
    python scripts/threads.py --sizes small --seconds 1

Pretraining, finetuning and evaluation of a small and a large model: one thread, as many threads as cores, as many ranks
as cores, each alone and beside a process that keeps a core busy, threads with several GOMP_SPINCOUNT. Batches of
finetuning and evaluation differ in length and are packed, as real ones are. Writes OUT.json and OUT.md
(benchmarks/threads by default).
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ds_minimodel.benchmark.workloads import Workload

CORES = os.cpu_count() or 1
SPINS = (0, 10_000, 30_000, 100_000, 1_000_000)
WORKS = ("pretrain", "finetune", "evaluate")
# size: (layers, width, heads, vocabulary, tokens of a step, of a pass in evaluation, examples), the quickstart's first
SIZES = {"small": (4, 128, 2, 3000, 2048, 16_384, 2000), "large": (4, 768, 12, 16_000, 1024, 4096, 200)}
LENGTHS = (8, 40)  # tokens of an example, the shortest and the longest
BATCH = 32  # examples of a step of finetuning
WARM_UP = 3  # steps that are not counted


def steps_of(size: str, precision: str) -> Iterator[tuple[str, Callable[[int], int]]]:
    """(work, function that takes a step of it and returns its tokens) for each work."""
    import numpy as np
    import torch

    from ds_minimodel.benchmark.workloads import make_batch, our_module, resolved_run, workload
    from ds_minimodel.engine.loop import optimizer_step
    from ds_minimodel.engine.ranks.world import join_ranks
    from ds_minimodel.engine.zero.engine import build_engine
    from ds_minimodel.model.heads import TaskModel, to_tensors
    from ds_minimodel.ops.precision import DTYPES
    from ds_minimodel.recipe.reading import load_recipe
    from ds_minimodel.tasks.batches import TaskSampler, evaluation_batches, join

    world = join_ranks()
    layers, width, heads, vocabulary, tokens, of_a_pass, number = SIZES[size]
    model = f"{{num_layers: {layers}, hidden_size: {width}, num_heads: {heads}, ffn_size: {4 * width}}}"
    recipe = load_recipe(
        ROOT / "recipes/paper.yaml",
        [
            f"model={model}",
            f"mini={{depth: {layers // 2}, new_layers: 1}}",
            f"tokenizer.vocab_size={vocabulary}",
            f"engine={{zero_stage: {int(world.size > 1)}, precision: {precision}, micro_batch_size: 1000}}",
        ],
    )
    draw = np.random.default_rng(1)
    lengths = draw.integers(*LENGTHS, size=number)
    examples = join([draw.integers(5, vocabulary, size=length) for length in lengths], np.zeros(number), True)

    of_pretraining, of_finetuning = (workload(recipe, name, tokens // world.size, 64) for name in WORKS[:2])
    sampler, share = TaskSampler(examples, BATCH, 1), BATCH // world.size

    def made_up(step: int) -> dict[str, Any]:
        return make_batch(of_pretraining, step * world.size + world.rank)

    def packed(step: int) -> dict[str, Any]:
        first = step * BATCH + world.rank * share
        return to_tensors(sampler.rows(first, first + share))

    def train(work: "Workload", batch_of: Callable[[int], dict[str, Any]]) -> Callable[[int], int]:
        run = resolved_run(work, recipe, world)
        engine = build_engine(our_module(work, recipe), run, world)

        def take_step(step: int) -> int:
            batch = batch_of(step)
            (count,) = world.sum(batch["count"])  # as the loop does
            optimizer_step(engine, [batch], count, run, world, step)
            return int(batch["lengths"].sum()) if "lengths" in batch else batch["tokens"].numel()

        return take_step

    yield "pretrain", train(of_pretraining, made_up)
    yield "finetune", train(of_finetuning, packed)
    module = cast(TaskModel, our_module(of_finetuning, recipe).eval().to(DTYPES[precision]))
    batches = [batch for _, batch in evaluation_batches(examples, of_a_pass)]

    @torch.inference_mode()
    def evaluate(_step: int) -> int:  # each rank scores a pack of its own
        for batch in batches:
            module.logits(to_tensors(batch)).float().numpy()
        return int(lengths.sum())

    yield "evaluate", evaluate


def as_rank(size: str, precision: str, seconds: float) -> None:
    """Be a rank: take steps of each work; rank 0 prints {work: tokens a second of all ranks, a figure a step}."""
    from ds_minimodel.engine.ranks.world import join_ranks
    from ds_minimodel.ops.cpu import configure_cpu

    configure_cpu()
    world = join_ranks()
    found: dict[str, list[float]] = {}
    for name, step in steps_of(size, precision):
        rates: list[float] = []
        going, number, end = 1, 0, 0.0
        while going:
            if number == WARM_UP:
                end = time.perf_counter() + seconds
            start = time.perf_counter()
            tokens = step(number)
            if number >= WARM_UP:
                rates.append(tokens / (time.perf_counter() - start))
            number += 1
            going, _ = world.sum(int(world.is_main and (len(rates) < 5 or time.perf_counter() < end)), 0)
        found[name] = [sum(of_ranks) for of_ranks in zip(*world.gather(rates.copy), strict=True)]
    if world.is_main:
        print(json.dumps(found))


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """A process that keeps a core busy."""
    loop = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # it ends with this process
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(size: str, precision: str, threads: int, ranks: int, spins: int | None, seconds: float) -> dict[str, Any]:
    """What `as_rank` prints on `ranks` ranks of `threads` threads. spins: None for the package's own setting."""
    from ds_minimodel.engine.ranks.launch import cpu_settings
    from ds_minimodel.engine.ranks.rendezvous import free_port

    environment = os.environ | cpu_settings() | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    if spins is not None:
        environment["GOMP_SPINCOUNT"] = str(spins)
    if ranks > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--as-rank", size, precision, str(seconds)]
    with tempfile.TemporaryFile("w+") as out:
        processes = []
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            processes.append(
                subprocess.Popen(
                    command, stdout=out if rank == 0 else subprocess.DEVNULL, stderr=sys.stderr, env=environment | own
                )
            )
        codes = [process.wait() for process in processes]
        if any(codes):
            sys.exit(f"threads.py: ranks ended with {codes}")
        out.seek(0)
        return json.loads(out.read().splitlines()[-1])


def main() -> int:
    if sys.argv[1:2] == ["--as-rank"]:
        size, precision, seconds = sys.argv[2:]
        as_rank(size, precision, float(seconds))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="default: all")
    parser.add_argument("--spins", nargs="+", type=int, default=SPINS, help=f"default: {' '.join(map(str, SPINS))}")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement; default: 4")
    parser.add_argument("--repeats", type=int, default=1, help="of all of it; default: 1")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/threads")
    options = parser.parse_args()

    import torch

    from ds_minimodel.common.files import write_json
    from ds_minimodel.ops.cpu import configure_cpu
    from ds_minimodel.ops.precision import resolve_precision
    from ds_minimodel.planning.calibration import device_name

    configure_cpu()
    precision = resolve_precision("auto", torch.device("cpu"))
    settings = [(1, 1, None), *((CORES, 1, spins) for spins in (*options.spins, None)), (1, CORES, None)]
    rows: list[dict[str, Any]] = []
    facts = {
        "command": " ".join(["python scripts/threads.py", *sys.argv[1:]]),
        "device": f"{device_name()}, {CORES} cores",
        "precision": precision,
        "torch": torch.__version__,
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }
    for _, size, beside, (threads, ranks, spins) in itertools.product(
        range(options.repeats), options.sizes, (False, True), settings
    ):
        with busy_core() if beside else contextlib.nullcontext():
            found = measured(size, precision, threads, ranks, spins, options.seconds)
        setting = {"size": size, "beside_busy_core": beside, "threads": threads, "ranks": ranks, "spins": spins}
        rows.append({**setting, "tokens_per_second": found})
        print(
            size,
            "busy" if beside else "alone",
            threads,
            ranks,
            spins,
            {name: round(statistics.median(rates)) for name, rates in found.items()},
            file=sys.stderr,
            flush=True,
        )
        write_json(options.out.with_suffix(".json"), {**facts, "rows": rows})
    options.out.with_suffix(".md").write_text(page(facts, rows), encoding="utf-8")
    print(page(facts, rows))
    return 0


def page(facts: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown: tokens a second, the median of a measurement, and against one thread."""
    names = {(1, 1): "1 thread", (CORES, 1): f"{CORES} threads", (1, CORES): f"{CORES} ranks"}
    lines = [
        "# Threads, ranks and spins",
        "",
        "; ".join(f"{key}: {value}" for key, value in facts.items()) + ".",
        "",
        "Tokens a second, the median of the steps of a measurement, and in brackets its share of one thread's beside "
        "it. Padding does not count. Spins: how often a waiting thread of OpenMP looks again before it sleeps "
        "(`GOMP_SPINCOUNT`).",
        "",
        "| model | machine | setting | " + " | ".join(WORKS) + " |",
        "| --- | --- | --- |" + " ---: |" * len(WORKS),
    ]
    keys = ("size", "beside_busy_core", "threads", "ranks", "spins")
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        of_works = found.setdefault(tuple(row[key] for key in keys), {})
        for name, rates in row["tokens_per_second"].items():
            of_works.setdefault(name, []).extend(rates)
    for (size, beside, threads, ranks, spins), of_works in found.items():
        single = found[size, beside, 1, 1, None]
        cells = []
        for name in WORKS:
            rate, alone = statistics.median(of_works[name]), statistics.median(single[name])
            cells.append(f"{rate:,.0f} ({rate / alone:.2f})")
        setting = names[threads, ranks] + (
            f", {spins:,} spins" if spins is not None else ", as they come" if threads > 1 else ""
        )
        lines.append(f"| {size} | {'beside a busy core' if beside else 'alone'} | {setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
