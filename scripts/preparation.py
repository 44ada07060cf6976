"""Measure `prepare`: tokens a second and peak memory, in one process and on ranks of mpirun.

    python scripts/preparation.py TEXT… [--megabytes 500] [--ranks 1,2] [--rounds 1] [--out FILE.json]

The text is repeated up to so many MB. Every way must give the same store, byte for byte. Memory is the
resident set, sampled every 0.1 s: of the largest process, and of all together (shared pages count in each).
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ds_minimodel.common.files import read_manifest, write_json
from ds_minimodel.data.prepare import prepare
from ds_minimodel.data.tokenizer import train_tokenizer
from ds_minimodel.engine.ranks import mpi

VOCAB_SIZE = 16_000


def prepare_here(text: str, tokenizer: str, out: str) -> None:
    """Prepare `text`, as each process of a measured way does."""
    if not mpi.started():
        prepare([text], tokenizer, out)
        return
    from ds_minimodel.data.workers import MpiRanks

    ranks = MpiRanks(mpi.world())
    ranks.from_main(lambda: prepare([text], tokenizer, out, ranks=ranks))
    mpi.end()


def measure(launcher: list[str], text: Path, tokenizer: Path, out: Path) -> tuple[dict, dict]:
    """Run prepare_here under a launcher; return the hashes of the store, and {seconds, tokens, MiB}."""
    command = [*launcher, sys.executable, __file__, "--here", str(text), str(tokenizer), str(out)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    began, before, largest, together = time.monotonic(), os.times(), 0, 0
    process = subprocess.Popen(command, env=environment)
    family = psutil.Process(process.pid)
    while process.poll() is None:
        sizes = []
        for member in [family, *family.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(member.memory_info().rss)
        largest, together = max([largest, *sizes]), max(together, sum(sizes))
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: ended with code {process.returncode}")
    seconds, after, manifest = time.monotonic() - began, os.times(), read_manifest(out)
    cpu_seconds = sum(after[2:4]) - sum(before[2:4])  # of the children: user and system
    return manifest["files"], {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "tokens": manifest["tokens"],
        "tokens_per_second": round(manifest["tokens"] / seconds),
        "largest_process_mib": round(largest / 2**20),
        "all_processes_mib": round(together / 2**20),
    }


def repeat(texts: list[str], megabytes: int, out: Path) -> None:
    """Write the texts one after another, again and again, until `megabytes` are full."""
    size = megabytes * 10**6
    with open(out, "wb") as file:
        while file.tell() < size:
            for text in texts:
                file.write(Path(text).read_bytes().strip() + b"\n\n")
    os.truncate(out, text_end(out, size))


def text_end(path: Path, size: int) -> int:
    """Last end of a line within the first `size` bytes, so that no character is cut."""
    with open(path, "rb") as file:
        file.seek(size - (1 << 16))
        return size - (1 << 16) + file.read(1 << 16).rindex(b"\n") + 1


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--megabytes", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks under mpirun; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="the ways take turns so often; default: 1")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        prepare_here(*options.texts)
        return
    with tempfile.TemporaryDirectory(prefix="preparation-") as temporary:
        folder = Path(temporary)
        train_tokenizer(options.texts, folder / "tokenizer", VOCAB_SIZE, 0.9998, 200_000)
        repeat(options.texts, options.megabytes, folder / "text.txt")
        launchers: dict[str, list[str]] = {
            "one process": [],
            **{f"mpirun -n {ranks}": ["mpirun", "--oversubscribe", "-n", ranks] for ranks in options.ranks.split(",")},
        }
        stores: list[dict] = []
        seen: dict[str, list[dict]] = {way: [] for way in launchers}
        for way in [*launchers] * options.rounds:
            store, figures = measure(launchers[way], folder / "text.txt", folder / "tokenizer", folder / "store")
            stores.append(store)
            seen[way].append(figures)
            print(way, figures, file=sys.stderr)
            assert store == stores[0], f"{way}: not the bytes of one process"
    if options.out:
        write_json(
            options.out,
            {
                "cores": os.cpu_count(),
                "date": time.strftime("%Y-%m-%d"),
                "megabytes": options.megabytes,
                "vocab_size": VOCAB_SIZE,
                "texts": [Path(text).name for text in options.texts],
                "ways": {way: summary(rounds) for way, rounds in seen.items()},
            },
        )


def summary(rounds: list[dict]) -> dict:
    """Medians of rate and CPU time, and the peaks of memory, over the rounds of one way."""
    return {
        "tokens_per_second": round(statistics.median(figures["tokens_per_second"] for figures in rounds)),
        "cpu_seconds": statistics.median(figures["cpu_seconds"] for figures in rounds),
        "largest_process_mib": max(figures["largest_process_mib"] for figures in rounds),
        "all_processes_mib": max(figures["all_processes_mib"] for figures in rounds),
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
