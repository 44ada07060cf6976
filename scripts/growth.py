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
import io
import json
import math
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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from ds_minimodel.benchmark.workloads import Workload
    from ds_minimodel.results.render import Block

PARTS = ("steps", "loader", "store", "tokenise", "ranks", "stall")
STEPS = {"pretrain": "1 pretrain", "adapt-full": "2 adapt"}
BASE = {"vocabulary": 8000, "length": 128, "depth": 4, "width": 256}
AXES = {
    "vocabulary": (2000, 8000, 32_000, 64_000),
    "length": (32, 128, 256, 512),
    "depth": (2, 4, 8, 16),
    "width": (128, 256, 512, 768),
}
SHARD_TOKENS = 64_000_000  # of a store's shard: 256 MiB of text
SAMPLE_BATCH, WARM_BATCHES, BATCHES = 256, 2, 40  # samples of a batch drawn from a store
TABLE_LENGTH = 512
USUAL_FILES = 1024  # that a process may open
PARAMETERS = (1e6, 4e6, 16e6)  # of a model whose saves are timed


class Fit(NamedTuple):
    """Least squares: y = a + b x, the share of the variance that it explains, and the slope of log y over log x."""

    a: float
    b: float
    r2: float
    slope: float


def fit(x: Sequence[float], y: Sequence[float]) -> Fit:
    """Fit of at least two points of different x."""
    b, a = np.polyfit(x, y, 1)
    spread = np.var(y)
    r2 = 1 - float(np.var(np.asarray(y) - (a + b * np.asarray(x))) / spread) if spread else 1.0
    logs = np.log(np.maximum(x, 1e-12)), np.log(np.maximum(y, 1e-12))
    return Fit(float(a), float(b), r2, float(np.polyfit(*logs, 1)[0]))


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
    manifest = {"kind": "token_store", "shards": shards, "vocab_size": vocab_size, "tokenizer_sha256": "00" * 32}
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
            made = {"tokens": batch_size * length, "seconds": statistics.median(seconds[WARM_BATCHES:])}
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


# --- the page


def page(record: Mapping[str, Any]) -> "list[Block]":
    """The record as blocks of a page."""
    from ds_minimodel.results.render import Facts, Figure, Heading, Notes

    parts = record["parts"]
    blocks: list[Block] = [
        Notes(
            ["Repeat it with `python scripts/growth.py TEXT…`, a part with `--parts PART`; what each part ran under:"]
        ),
        Facts({part: "; ".join(f"{key} {value}" for key, value in parts[part]["facts"].items()) for part in parts}),
        Figure("growth.png", b"", "Measured points and least-squares lines"),
        Heading("Goals"),
        goals_table(parts),
    ]
    for part in parts:
        blocks += [Heading(TITLES[part]), *TABLES[part](parts)]
    return blocks


TITLES = {
    "steps": "A step against vocabulary, length, depth and width",
    "loader": "Loader and masking",
    "store": "Token stores",
    "tokenise": "Tokenisation",
    "ranks": "Ranks",
    "stall": "Saves",
}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *notes: str) -> "Block":
    from ds_minimodel.results.render import Cell, Table

    return Table(title, columns, [[Cell(str(entry)) for entry in row] for row in rows], notes=notes)


def shares_of_loader(parts: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(step and sizes, share of the step that making its batch takes) of all measured steps."""
    seconds = {(row["vocabulary"], row["length"]): row["seconds"] for row in parts["loader"]["rows"]}
    return [
        (f"{STEPS[row['step']]}, {row['axis']} {row['x']}", seconds[row["vocabulary"], row["length"]] / row["fastest"])
        for row in parts["steps"]["rows"]
    ]


def goals_table(parts: Mapping[str, Any]) -> "Block":
    """Each goal that the parts say something of: what was measured, and whether that is within it."""
    rows: list[tuple[str, str, bool]] = []
    if "loader" in parts and "steps" in parts:
        where, worst = max(shares_of_loader(parts), key=lambda pair: pair[1])
        rows.append(("loader and masking: at most 1 % of a step", f"{worst:.2%} at most ({where})", worst <= 0.01))
    if "store" in parts:
        first, last = parts["store"]["rows"][0], parts["store"]["rows"][-1]
        times = last["sample_seconds"] / first["sample_seconds"]
        grown = last["grown_in_sampling_mib"]
        rows += [
            (
                "a sample takes the same at any size of the store",
                f"{times:.2f} times from {first['x']:g} to {last['x']:g} GB",
                times <= 1.25,
            ),
            ("sampling takes no more memory", f"{grown} MiB more after {BATCHES * SAMPLE_BATCH:,} samples", grown < 4),
            (
                "opening takes part of a millisecond for each shard",
                f"{1e3 * last['open_seconds'] / last['shards']:.2f} ms; {last['x']:g} GB: {last['open_seconds']:.2f} s",
                last["open_seconds"] < 1e-3 * last["shards"],
            ),
        ]
    if "tokenise" in parts:
        for way, share in shares_of_tokenising(parts["tokenise"]["rows"][-1]).items():
            rows.append(("tokenisation: 90 % of SentencePiece × cores", f"{share:.1%} ({way})", share >= 0.9))
    return table(
        "Goals", ["goal", "measured", "met"], [(goal, found, "yes" if met else "no") for goal, found, met in rows]
    )


def shares_of_tokenising(report: Mapping[str, Any]) -> dict[str, float]:
    """{way: share of SentencePiece's rate} of a report of scripts/preparation.py."""
    return {way: found["share"] for way, found in report["ways"].items() if way.startswith("prepare")}


def line_of(name: str, unit: str, of: Fit, expected: str) -> tuple[str, ...]:
    return name, f"{of.a:.3g} + {of.b:.3g} · {unit}", f"{of.r2:.3f}", f"{of.slope:.2f}", expected


def step_tables(parts: Mapping[str, Any]) -> "list[Block]":
    rows, fits = parts["steps"]["rows"], []
    for (axis, step), points in lines_of(rows).items():
        x, unit = [row["x"] for row in points], "width²" if axis == "width" else axis
        seconds = fit([value**2 for value in x] if axis == "width" else x, [row["fastest"] for row in points])
        slope = fit(x, [row["fastest"] / row["tokens"] for row in points]).slope
        flops = fit(x, [row["flops"] / row["tokens"] for row in points]).slope
        fits.append(line_of(f"{STEPS[step]}, {axis}", unit, seconds._replace(slope=slope), f"{flops:.2f}"))
    return [
        table(
            "Tokens a second",
            ["step", "axis", "value", "tokens/s", "seconds: fastest", "median", "slowest", "GiB", "GFLOP/s"],
            [
                (
                    STEPS[row["step"]],
                    row["axis"],
                    row["x"],
                    f"{row['tokens'] / row['fastest']:,.0f}",
                    f"{row['fastest']:.3f}",
                    f"{row['seconds']:.3f}",
                    f"{row['slowest']:.3f}",
                    f"{row['memory_bytes'] / 2**30:.2f}",
                    f"{row['flops'] / row['fastest'] / 1e9:,.0f}",
                )
                for row in rows
            ],
            f"Where an axis does not vary: {', '.join(f'{key} {value}' for key, value in BASE.items())}; heads of 64; "
            "about the same number of tokens a step at every point; fp32, ZeRO 1, one thread. Fits are of the "
            "fastest steps: others on a machine only add to a step.",
        ),
        table(
            "Seconds of a step, least squares",
            ["step, axis", "seconds", "R²", "log-log slope of seconds a token", "the same of executed FLOPs"],
            fits,
            "Where the slope of the seconds is below that of the FLOPs, larger products are faster ones or some of the "
            "step does not grow; where it is above, memory binds.",
        ),
    ]


def lines_of(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """{(axis, step): rows} of curves that have two points."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row.get("axis", "ranks"), row["step"]), []).append(row)
    return {key: points for key, points in found.items() if len(points) > 1}


def rank_tables(parts: Mapping[str, Any]) -> "list[Block]":
    rows = parts["ranks"]["rows"]
    alone = {row["step"]: row["tokens"] / row["seconds"] for row in reversed(rows)}  # of the fewest ranks
    return [
        table(
            "Tokens a second of all ranks",
            ["step", "ranks", "tokens/s", "times the first", "seconds: fastest", "median", "slowest"],
            [
                (
                    STEPS[row["step"]],
                    row["x"],
                    f"{row['tokens'] / row['seconds']:,.0f}",
                    f"{row['tokens'] / row['seconds'] / alone[row['step']]:.2f}",
                    f"{row['fastest']:.3f}",
                    f"{row['seconds']:.3f}",
                    f"{row['slowest']:.3f}",
                )
                for row in rows
            ],
            "Each rank has its own batch of the same size, and one thread; by the clock. More ranks than cores share "
            "them.",
        )
    ]


def loader_tables(parts: Mapping[str, Any]) -> "list[Block]":
    found = [
        table(
            "Making a batch",
            ["vocabulary", "length", "milliseconds", "µs a sample", "ns a token", "1 % of a step at tokens/s"],
            [
                (
                    row["vocabulary"],
                    row["length"],
                    f"{1e3 * row['seconds']:.2f}",
                    f"{1e6 * row['seconds'] * row['length'] / row['tokens']:.0f}",
                    f"{1e9 * row['seconds'] / row['tokens']:.0f}",
                    f"{0.01 * row['tokens'] / row['seconds']:,.0f}",
                )
                for row in parts["loader"]["rows"]
            ],
            "Time that the thread ran: order, reading, checksums, masking, tensors; it works beside the device. A rank "
            "that trains at less than the last column has it below 1 %; at a hundred times that rate it would wait.",
        )
    ]
    if "steps" in parts:
        shares = [(where, f"{share:.2%}") for where, share in shares_of_loader(parts)]
        found.append(table("Share of the steps above", ["step", "share"], shares))
    return found


def store_tables(parts: Mapping[str, Any]) -> "list[Block]":
    rows = parts["store"]["rows"]
    x = [row["x"] for row in rows]
    fits = [
        line_of(name, "GB", fit(x, [scale * row[key] for row in rows]), expected)
        for name, key, scale, expected in (
            ("open the store, s", "open_seconds", 1, "1: a part for each shard"),
            ("build the table of blocks, s", "table_seconds", 1, "1: once for a store"),
            ("open the table, s", "table_open_seconds", 1, "1, of 1/2048 of its bytes"),
            ("first samples, µs", "first_sample_seconds", 1e6, "0"),
            ("a sample, µs", "sample_seconds", 1e6, "0"),
        )
    ]
    return [
        table(
            "A store of N GB",
            [
                "GB",
                "shards",
                "open, s",
                "table, s",
                "first samples, µs",
                "a sample, µs",
                "MiB of its own",
                "MiB of files",
                "page tables, MiB",
            ],
            [
                (
                    f"{row['x']:g}",
                    f"{row['shards']:,}",
                    f"{row['open_seconds']:.3f}",
                    f"{row['table_seconds']:.2f}",
                    f"{1e6 * row['first_sample_seconds']:.0f}",
                    f"{1e6 * row['sample_seconds']:.0f}",
                    *(f"{row['grown_mib'][key]:g}" for key in ("RssAnon", "RssFile", "VmPTE")),
                )
                for row in rows
            ],
            f"Sparse files of {SHARD_TOKENS:,} ids of 16 bits a shard, with all checksums, opened by a fresh process "
            f"that may have {USUAL_FILES:,} files open; CPU time; {BATCHES} batches of {SAMPLE_BATCH} samples of "
            f"{TABLE_LENGTH} tokens, nearly each in a piece not read before: the first batch, and the median of all. "
            "Memory: what the process has more at the end. Real files of this size also wait for the disk.",
        ),
        table("Least squares", ["what", "fit", "R²", "log-log slope", "expected slope"], fits),
    ]


def tokenise_tables(parts: Mapping[str, Any]) -> "list[Block]":
    return [
        table(
            "prepare beside SentencePiece alone",
            ["MB", "way", "tokens a CPU second", "share", "tokens/s", "largest process, MiB", "all, MiB"],
            [
                (
                    report["megabytes"],
                    way,
                    f"{found['tokens_per_cpu_second']:,}",
                    f"{found['share']:.1%}",
                    f"{found['tokens_per_second']:,}",
                    found["largest_process_mib"],
                    found["all_processes_mib"],
                )
                for report in parts["tokenise"]["rows"]
                for way, found in report["ways"].items()
            ],
            "SentencePiece alone reads the lines and encodes each MiB of them in one call, on one core. Share: its CPU "
            "time by the way's own, start of the processes included, in their fastest rounds: of SentencePiece × cores "
            "where nothing else runs. The store is checked, hashed and read back within it.",
        )
    ]


def stall_tables(parts: Mapping[str, Any]) -> "list[Block]":
    rows = parts["stall"]["rows"]
    found = [
        table(
            "How long a save keeps training waiting",
            [
                "parameters",
                "MiB",
                "written at once, s",
                "in the background, s",
                "until on disk, s",
                "a step, s",
                "a step beside, s",
            ],
            [
                (
                    f"{row['trainable_parameters']:,}",
                    f"{row['bytes'] / 2**20:.0f}",
                    *(
                        f"{row['median_seconds'][key]:.3f}"
                        for key in ("at_once", "background", "until_on_disk", "plain_step", "steps_beside")
                    ),
                )
                for row in rows
            ],
            "Medians by the clock of scripts/checkpoint_stall.py.",
        )
    ]
    if len(rows) > 1:
        sizes = [row["bytes"] / 2**20 for row in rows]
        fits = [
            line_of(key, "MiB", fit(sizes, [row["median_seconds"][key] for row in rows]), "1")
            for key in ("at_once", "background", "until_on_disk")
        ]
        found.append(table("Least squares", ["seconds", "fit", "R²", "log-log slope", "expected slope"], fits))
    return found


TABLES = {
    "steps": step_tables,
    "loader": loader_tables,
    "store": store_tables,
    "tokenise": tokenise_tables,
    "ranks": rank_tables,
    "stall": stall_tables,
}


def panels_of(parts: Mapping[str, Any]) -> list[tuple[str, str, str, list[float], list[float]]]:
    """(panel, unit of y, line, x, y) of all curves; lines of one panel follow each other."""
    found = []
    for part in ("steps", "ranks"):
        for (axis, step), rows in lines_of(parts.get(part, {"rows": []})["rows"]).items():
            key = "fastest" if part == "steps" else "seconds"
            rates = [row["tokens"] / row[key] for row in rows]
            found.append((axis, "tokens/s", STEPS[step], [row["x"] for row in rows], rates))
    for panel, key, scale, unit in (
        ("GB: opening", "open_seconds", 1, "s"),
        ("GB: a sample", "sample_seconds", 1e6, "µs"),
    ):
        rows = parts.get("store", {"rows": []})["rows"]
        if len(rows) > 1:
            found.append((panel, unit, "", [row["x"] for row in rows], [scale * row[key] for row in rows]))
    rows = parts.get("stall", {"rows": []})["rows"]
    if len(rows) > 1:
        for key, label in (("at_once", "at once"), ("background", "in the background")):
            sizes = [row["bytes"] / 2**20 for row in rows]
            found.append(("MiB: a save's stall", "s", label, sizes, [row["median_seconds"][key] for row in rows]))
    return found


def picture(parts: Mapping[str, Any]) -> bytes:
    """PNG of all curves, a panel an axis, both axes logarithmic; dashed: the line of the log-log slope."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ds_minimodel.results.plots import RC_PARAMS

    curves = panels_of(parts)
    names = list(dict.fromkeys(panel for panel, *_ in curves))
    with rc_context(RC_PARAMS):
        figure = Figure(figsize=(12.4, 2.9 * math.ceil(len(names) / 4)), dpi=144, layout="constrained")
        FigureCanvasAgg(figure)
        for number, name in enumerate(names):
            axes = figure.add_subplot(math.ceil(len(names) / 4), 4, number + 1, xscale="log", yscale="log", title=name)
            for _, unit, label, x, y in (curve for curve in curves if curve[0] == name):
                slope, start = np.polyfit(np.log(x), np.log(y), 1)
                (drawn,) = axes.plot(x, y, "o", label=f"{label} (slope {slope:.2f})".strip())
                axes.plot(x, np.exp(start + slope * np.log(x)), "--", color=drawn.get_color(), linewidth=1)
                axes.set_ylabel(unit)
            axes.legend(frameon=False, fontsize=8)
        png = io.BytesIO()
        figure.savefig(png, format="png")
    return png.getvalue()


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
    parts: dict[str, Any] = read_json(file)["parts"] if file.exists() else {}
    for part in () if options.again else options.parts:
        load = os.getloadavg()[0]
        found = MEASURES[part](options)
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
        parts = {**parts, part: {"facts": facts, **found}}
        save({"parts": {name: parts[name] for name in PARTS if name in parts}}, options.out)
    if options.again:
        save({"parts": parts}, options.out)
    print(options.out.with_suffix(".md").read_text(encoding="utf-8"))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="raw text, for the part tokenise")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
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
