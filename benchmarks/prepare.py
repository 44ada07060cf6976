"""Preparing text: tokens a second and memory of `prepare`, beside SentencePiece alone on one
core.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.processes import ROOT
from benchmarks.record import table
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.report.render import Table
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer

VOCABULARY = 16_000
ALONE = "SentencePiece alone"

PAGE = f"""Preparing text
A text, repeated up to so many MB, into a token store; vocabulary {VOCABULARY:,}, unigram. Every way
gives the same store, byte for byte, and it is checked, hashed and read back within the time.
SentencePiece alone reads the lines and encodes each MiB of them in one call, on one core. Share:
its CPU time by the way's own, start of the processes included, in their fastest rounds: of
SentencePiece × cores where nothing else runs. Memory: the resident set, every 0.1 s, of the largest
process and of all together; pages that they share are counted in each."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts", nargs="+", metavar="TEXT", help="raw text, as of ds-minimodel fetch-sample"
    )
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[20, 100], help="default: 20 100"
    )
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[1, 2], help="data.workers; default: 1 2"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="*",
        default=[],
        help="numbers of ranks under mpirun; default: none",
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each amount of text and way."""
    ways: dict[str, tuple[list[str], int]] = {ALONE: ([], 0)}
    ways |= {f"prepare, workers: {count}": ([], count) for count in options.workers}
    ways |= {
        f"mpirun -n {ranks}": (["mpirun", "--oversubscribe", "-n", str(ranks)], 1)
        for ranks in options.ranks
    }
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(prefix="prepare-") as temporary:
            folder = Path(temporary)
            train_tokenizer(options.texts, folder / "tokenizer", VOCABULARY, 0.9998, 200_000)
            repeat(options.texts, megabytes, folder / "text.txt")
            stores: list[dict] = []
            rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for way in [*ways] * options.repeats:
                rounds[way].append(time_way(*ways[way], folder))
                if way != ALONE:
                    manifest = read_manifest(folder / "store")
                    stores.append(manifest["files"])
                    assert stores[-1] == stores[0], f"{way}: not the bytes of the first way"
                    shutil.rmtree(folder / "store")
        alone = min(one["cpu_seconds"] for one in rounds[ALONE])
        for way, found in rounds.items():
            least = min(one["cpu_seconds"] for one in found)
            yield {
                "megabytes": megabytes,
                "way": way,
                "tokens_per_second": round(
                    manifest["tokens"] / statistics.median(one["seconds"] for one in found)
                ),
                "tokens_per_cpu_second": round(manifest["tokens"] / least),
                "share": round(alone / least, 3),
                "largest_process_mib": max(one["largest_process_mib"] for one in found),
                "all_processes_mib": max(one["all_processes_mib"] for one in found),
            }


def repeat(texts: Sequence[str], megabytes: int, out: Path) -> None:
    """Write the texts one after another, again and again, in whole lines, until `megabytes` are
    full.
    """
    size = megabytes * 10**6
    lines = [
        line
        for text in texts
        for line in [*Path(text).read_bytes().strip().splitlines(True), b"\n\n"]
    ]
    if not lines:
        raise UserError(f"{', '.join(texts)}: without text")
    with open(out, "wb") as file:
        while file.tell() < size:
            for line in lines:
                if file.tell() + len(line) > size:
                    return
                file.write(line)


def time_way(launcher: list[str], workers: int, folder: Path) -> dict[str, float]:
    """Prepare the text in processes of their own: seconds, CPU seconds and MiB."""
    command = [
        *launcher,
        sys.executable,
        "-m",
        "benchmarks.prepare_once",
        str(folder),
        str(workers),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    began = time.monotonic()
    before = os.times()
    largest = 0
    together = 0
    process = subprocess.Popen(command, env=environment)
    family = psutil.Process(process.pid)
    while process.poll() is None:
        sizes = []
        for member in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(member.memory_info().rss)
        largest = max([largest, *sizes])
        together = max(together, sum(sizes))
        time.sleep(0.1)
    if process.returncode:
        raise UserError(
            f"{' '.join(command)}: ended with code {process.returncode}, as the lines above say"
        )
    return {
        "seconds": time.monotonic() - began,
        "cpu_seconds": sum(os.times()[2:4]) - sum(before[2:4]),  # of the children: user and system
        "largest_process_mib": round(largest / 2**20),
        "all_processes_mib": round(together / 2**20),
    }


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    lines = [
        [
            row["megabytes"],
            row["way"],
            f"{row['tokens_per_cpu_second']:,}",
            f"{row['share']:.1%}",
            f"{row['tokens_per_second']:,}",
            row["largest_process_mib"],
            row["all_processes_mib"],
        ]
        for row in rows
    ]
    columns = [
        "MB",
        "way",
        "tokens a CPU second",
        "share",
        "tokens/s",
        "largest process, MiB",
        "all, MiB",
    ]
    return [table("prepare beside SentencePiece alone", columns, lines)]
