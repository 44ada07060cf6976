#!/usr/bin/env python3
"""Measure how cost grows: curves and fits of tokens a second, the loader, token stores, tokenisation and saves.

    python scripts/growth.py TEXT…                 # all parts; some twenty minutes on 2 idle cores
    python scripts/growth.py --parts store loader  # these parts again; the others stay as they were measured
    python scripts/growth.py --parts steps --clock cpu   # on a machine that others use too

TEXT is raw text to tokenise, as of `ds-minimodel fetch-sample`. Writes OUT.json, OUT.md and OUT.png
(benchmarks/growth by default). Steps and ranks are timed by the benchmark's contestants (ds_minimodel/benchmark),
tokenisation by scripts/preparation.py, saves by scripts/checkpoint_stall.py.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ds_minimodel.benchmark.growth import (
    BASE,
    BATCHES,
    SAMPLE_BATCH,
    SHARD_TOKENS,
    STEPS,
    TABLE_LENGTH,
    TITLES,
    USUAL_FILES,
    page,
    panels_of,
    picture,
)

if TYPE_CHECKING:
    from ds_minimodel.benchmark.workloads import Workload

AXES = {
    "vocabulary": (2000, 8000, 32_000, 64_000),
    "length": (32, 128, 512),
    "depth": (2, 4, 12),
    "width": (128, 256, 512),
}
WARM_BATCHES = 2
PARAMETERS = (1e6, 4e6, 16e6)  # of a model whose saves are timed


# --- steps and ranks: the benchmark's contestants


def task_of(sizes: Mapping[str, int], step: str, options: argparse.Namespace, clock: str) -> dict[str, Any]:
    """What a contestant's process is told."""
    depth, width = sizes["depth"], sizes["width"]
    model = f"{{num_layers: {depth}, hidden_size: {width}, num_heads: {max(1, width // 64)}, "
    half = max(1, depth // 2)
    return {
        "recipe": str(ROOT / "recipes/paper.yaml"),
        "overrides": [
            f"model={model}ffn_size: {4 * width}, max_positions: {max(AXES['length'])}}}",
            f"mini={{depth: {half}, new_layers: {max(1, depth // 4)}, depths: [{half}, {depth}]}}",
            f"tokenizer.vocab_size={sizes['vocabulary']}",
        ],
        "workload": step,
        "tokens": options.tokens,
        "seq_length": sizes["length"],
        "precision": "fp32",
        "zero_stage": 1,
        "threads": 1,
        "clock": clock,
    }


def workload_of(task: Mapping[str, Any]) -> "Workload":
    """The workload of a contestant's task."""
    from ds_minimodel.benchmark.workloads import workload
    from ds_minimodel.recipe.reading import load_recipe

    return workload(
        load_recipe(task["recipe"], task["overrides"]), task["workload"], task["tokens"], task["seq_length"]
    )


def in_turns(points: Sequence[tuple[dict[str, Any], int]], repeats: int) -> list[dict[str, float]]:
    """Seconds and memory of a step for each (task, ranks); they take turns."""
    from ds_minimodel.benchmark.rounds import Contestant, summary

    running: list[Contestant] = []

    def start(folder: str, point: tuple[dict[str, Any], int]) -> Contestant:
        running.append(one := Contestant("ds_minimodel", *point, Path(folder), 600))
        one.ask("step 2")  # to warm up
        return one

    with tempfile.TemporaryDirectory(prefix="growth-") as logs:
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of a start is waiting for disks and imports
                folders = [tempfile.mkdtemp(dir=logs) for _ in points]
                started = list(pool.map(start, folders, points))
            answers = [[one.ask("step 2") for one in started] for _ in range(repeats)]
            return [
                summary(list(of_one), one.ask("memory"))
                for one, of_one in zip(started, zip(*answers, strict=True), strict=True)
            ]
        finally:
            for one in running:
                one.end()


def measure_steps(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of each axis: sizes, step, seconds, tokens a second and FLOPs."""
    rows = []
    for axis in options.axes:
        points = [(step, {**BASE, axis: value}) for step in STEPS for value in AXES[axis][: options.points]]
        tasks = [task_of(sizes, step, options, options.clock) for step, sizes in points]
        found = in_turns([(task, 1) for task in tasks], options.repeats)
        for (step, sizes), task, timed in zip(points, tasks, found, strict=True):
            work = workload_of(task)
            row = {"axis": axis, "x": sizes[axis], "step": step, **sizes, **timed, "batch_size": work.batch_size}
            rows.append({**row, "tokens": work.tokens, "flops": work.cost().executed})
            say(f"{step} {axis} {sizes[axis]}: {timed['seconds']:.3f} s")
    return {"rows": rows}


def measure_ranks(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of ranks that share this machine, each with its own batch of the same size; always by the clock."""
    points = [(step, ranks) for step in STEPS for ranks in options.ranks]
    tasks = [(task_of(BASE, step, options, "wall"), ranks) for step, ranks in points]
    rows = [
        {"step": step, "x": ranks, **timed, "tokens": ranks * workload_of(task).tokens}
        for (step, ranks), (task, _), timed in zip(points, tasks, in_turns(tasks, options.repeats), strict=True)
    ]
    return {"rows": rows}


# --- the loader, and token stores


def sparse_store(folder: Path, gigabytes: float, vocab_size: int) -> int:
    """Make a token store of so many GB of ids 0 that takes no place on the disk; return the number of its shards."""
    from ds_minimodel.common.files import MANIFEST, sha256_of_file, write_json
    from ds_minimodel.data.store import id_type, shard_name, write_checksums, write_shard
    from ds_minimodel.data.tokenizer import trained_layout

    shards = max(1, round(gigabytes * 1e9 / id_type(vocab_size).itemsize / SHARD_TOKENS))
    folder.mkdir()
    facts: dict[str, Any] = {}
    for number in range(shards):
        path = folder / shard_name(number)
        if number == 0:  # the others are the same
            with write_shard(folder, 0, vocab_size, "00" * 32) as add:
                add([], [SHARD_TOKENS // 64] * 64)
            os.truncate(path.with_suffix(".bin"), SHARD_TOKENS * id_type(vocab_size).itemsize)
            write_checksums(path)
            kept = {file.suffix: (file.stat().st_size, sha256_of_file(file)) for file in sorted(folder.iterdir())}
            content = {suffix: path.with_suffix(suffix).read_bytes() for suffix in (".idx", ".crc")}
        for suffix, (size, sha256) in kept.items():
            file = path.with_suffix(suffix)
            file.write_bytes(content.get(suffix, b""))
            os.truncate(file, size)
            facts[file.name] = {"bytes": size, "sha256": sha256}
    manifest = {"kind": "token_store", "shards": shards, "tokenizer_sha256": "00" * 32}
    manifest |= trained_layout(vocab_size).facts()
    write_json(folder / MANIFEST, {**manifest, "files": facts})
    return shards


def memory() -> dict[str, float]:
    """MiB of this process: its own, of files that it maps, and of page tables."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile", "VmPTE")}


def open_store(folder: str) -> None:
    """Open a store, make its table of blocks, draw samples; print seconds and memory as JSON."""
    from ds_minimodel.data.blocks import BlockTable
    from ds_minimodel.data.mlm import MlmSampler
    from ds_minimodel.data.store import TokenStore

    resource.setrlimit(resource.RLIMIT_NOFILE, (USUAL_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    clock, before = time.process_time, memory()
    start = clock()
    store = TokenStore(folder)
    opened = clock()
    blocks = BlockTable(store, "none", TABLE_LENGTH)
    built, after_table = clock(), memory()
    blocks = BlockTable(store, "none", TABLE_LENGTH)
    seconds = {"open_seconds": opened - start, "table_seconds": built - opened, "table_open_seconds": clock() - built}
    sampler = MlmSampler(store, blocks, 0.15, 1)
    batches = []
    for number in range(BATCHES):
        start = clock()
        sampler.rows(number * SAMPLE_BATCH, (number + 1) * SAMPLE_BATCH)
        batches.append((clock() - start) / SAMPLE_BATCH)
    grown = {key: round(value - before[key], 1) for key, value in memory().items()}
    print(
        json.dumps(
            {
                **seconds,
                "first_sample_seconds": batches[0],
                "sample_seconds": statistics.median(batches),
                "grown_mib": grown,
                "grown_in_sampling_mib": round(sum(memory().values()) - sum(after_table.values()), 1),
                "tokens": store.num_tokens,
                "blocks": len(blocks),
            }
        )
    )


def measure_store(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of sparse stores, each opened by a fresh process that may open 1,024 files; CPU time."""
    rows = []
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as folder:
            path = Path(folder, "tokens")
            shards = sparse_store(path, gigabytes, 50_000)
            command = [sys.executable, __file__, "--open", str(path)]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        rows.append({"x": gigabytes, "shards": shards, **found})
        say(f"store of {gigabytes:g} GB: {found}")
    return {"rows": rows}


def measure_loader(options: argparse.Namespace) -> dict[str, Any]:
    """Rows of what a batch of each measured step takes to make, in the thread that makes it."""
    from ds_minimodel.data.blocks import BlockTable
    from ds_minimodel.data.mlm import MlmSampler
    from ds_minimodel.data.store import TokenStore
    from ds_minimodel.model.heads import to_tensors

    rows = []
    shapes = {(sizes["vocabulary"], sizes["length"]) for axis in AXES for sizes in sizes_of(axis)}
    with tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as folder:
        for vocabulary, length in sorted(shapes):
            path, batch_size = Path(folder, str(vocabulary)), max(1, options.tokens // length)
            if not path.exists():
                sparse_store(path, 0.1, vocabulary)
            store = TokenStore(path)
            sampler = MlmSampler(store, BlockTable(store, "none", length), 0.15, 1)
            seconds = []
            for number in range(WARM_BATCHES + BATCHES):
                start = time.thread_time()
                to_tensors(sampler.rows(number * batch_size, (number + 1) * batch_size))
                seconds.append(time.thread_time() - start)
            made = {"tokens": batch_size * length, "seconds": statistics.quantiles(seconds[WARM_BATCHES:])[0]}
            rows.append({"vocabulary": vocabulary, "length": length, **made})
    return {"rows": rows}


def sizes_of(axis: str) -> list[dict[str, int]]:
    """The sizes of an axis' points."""
    return [{**BASE, axis: value} for value in AXES[axis]]


# --- other scripts


def run_script(*arguments: object) -> None:
    """Run another script of this folder; what it prints is progress."""
    command = [sys.executable, *map(str, arguments)]
    from ds_minimodel.engine.ranks.launch import CPU, has_gpu

    environment = os.environ | ({} if has_gpu() else CPU | {"OMP_NUM_THREADS": "1"}) | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)


def measure_tokenise(options: argparse.Namespace) -> dict[str, Any]:
    """What scripts/preparation.py finds for each amount of text."""
    found = []
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        report = Path(folder, "report.json")
        for megabytes in options.megabytes:
            arguments = [*options.texts, "--megabytes", megabytes, "--ranks", "", "--rounds", options.rounds]
            run_script(ROOT / "scripts/preparation.py", *arguments, "--out", report)
            found.append(json.loads(report.read_text(encoding="utf-8")))
    return {"rows": found}


def measure_stall(options: argparse.Namespace) -> dict[str, Any]:
    """What scripts/checkpoint_stall.py finds for each size of a model."""
    found = []
    for parameters in PARAMETERS[: options.points]:
        with tempfile.TemporaryDirectory(prefix="growth-", dir=options.folder) as folder:
            report = Path(folder, "report.json")
            run_script(
                ROOT / "scripts/checkpoint_stall.py", folder, "--parameters", int(parameters), "--report", report
            )
            found.append(json.loads(report.read_text(encoding="utf-8")))
    return {"rows": found}


def save(record: Mapping[str, Any], out: Path) -> None:
    """Write the record, its page and its picture."""
    from ds_minimodel.common.files import atomic_write, write_json
    from ds_minimodel.results.render import to_markdown

    write_json(out.with_suffix(".json"), record)
    with atomic_write(out.with_suffix(".md"), "w") as file:
        file.write(to_markdown("How cost grows", page(record)).replace("(growth.png)", f"({out.name}.png)"))
    if panels_of(record["parts"]):
        with atomic_write(out.with_suffix(".png")) as file:
            file.write(picture(record["parts"]))


MEASURES = {
    "steps": measure_steps,
    "loader": measure_loader,
    "store": measure_store,
    "tokenise": measure_tokenise,
    "ranks": measure_ranks,
    "stall": measure_stall,
}


def main() -> int:
    options = _options()
    if options.open:
        open_store(options.open)
        return 0
    from ds_minimodel.benchmark.peaks import device_name
    from ds_minimodel.benchmark.record import circumstances
    from ds_minimodel.common.files import read_json

    file = options.out.with_suffix(".json")
    for part in () if options.again else options.parts:
        load = os.getloadavg()[0]
        found = MEASURES[part](options)
        before = read_json(file) if file.exists() else {"parts": {}}
        parts: dict[str, Any] = before["parts"]
        facts = {
            **circumstances(device_name()),
            "command": " ".join(
                ["python scripts/growth.py", *(Path(word).name if "/" in word else word for word in sys.argv[1:])]
            ),
            "clock": {"steps": options.clock, "ranks": "wall", "stall": "wall"}.get(part, "cpu"),
            "load": f"{load:.1f}, then {os.getloadavg()[0]:.1f}",
        }
        if part == "steps" and part in parts:  # axes that were measured before
            kept = [row for row in parts[part]["rows"] if row["axis"] not in options.axes]
            found = {"rows": sorted([*kept, *found["rows"]], key=lambda row: [*AXES].index(row["axis"]))}
            commands = [*parts[part]["facts"]["command"].split("; "), facts["command"]] if kept else [facts["command"]]
            facts["command"] = "; ".join(dict.fromkeys(commands))
        parts = {**parts, part: {"facts": facts, **found}}
        save({**before, "parts": parts}, options.out)
    if options.again:
        save(read_json(file), options.out)
    print(options.out.with_suffix(".md").read_text(encoding="utf-8"))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="raw text, for the part tokenise")
    parser.add_argument("--parts", nargs="+", choices=TITLES, default=[*TITLES], help="default: all")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of the part steps; default: wall")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=[*AXES], help="of the part steps; default: all")
    parser.add_argument("--points", type=int, help="the first so many points of a curve; default: all")
    parser.add_argument("--tokens", type=int, default=1024, help="of a step on each rank; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each point; default: %(default)s")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    parser.add_argument(
        "--gigabytes", type=float, nargs="+", default=[1, 3, 10, 30, 100, 300], help="of stores; default: 1 to 300"
    )
    parser.add_argument("--folder", help="where stores and checkpoints are made for a while; default: TMPDIR")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[30, 120], help="of text; default: 30 120")
    parser.add_argument("--rounds", type=int, default=3, help="of the part tokenise; default: %(default)s")
    parser.add_argument("--again", action="store_true", help="measure nothing: make the page of OUT.json again")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/growth")
    parser.add_argument("--open", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "tokenise" in options.parts and not (options.texts or options.again or options.open):
        parser.error("the part tokenise needs TEXT, such as ds-minimodel fetch-sample makes")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
