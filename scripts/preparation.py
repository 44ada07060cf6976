"""Measure `prepare`: tokens a second and peak memory, beside SentencePiece alone on one core.

    python scripts/preparation.py TEXT… [--megabytes 500] [--workers 1,2] [--ranks 1,2] [--rounds 1] [--out FILE.json]

The text is repeated up to so many MB. Every way must give the same store, byte for byte. Memory is the
resident set, sampled every 0.1 s: of the largest process, and of all together (shared pages count in each).
SentencePiece alone: a loop that reads the lines of the text and encodes each MiB of them in one call. A way's `share`
is the CPU time of that, of the way's own: where it has the cores to itself, its rate is that share of SentencePiece's
rate times cores.
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
from pathlib import Path

import psutil
import sentencepiece

from ds_minimodel.common.files import read_manifest, write_json
from ds_minimodel.data.prepare import prepare
from ds_minimodel.data.reader import CHUNK_BYTES
from ds_minimodel.data.tokenizer import UNIGRAM_FILE, train_tokenizer
from ds_minimodel.engine.ranks import mpi

VOCAB_SIZE = 16_000


ALONE = "SentencePiece alone"


def encode_alone(text: str, tokenizer: str) -> None:
    """Encode the lines of `text`, and keep nothing."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(Path(tokenizer) / UNIGRAM_FILE))
    with open(text, encoding="utf-8") as file:
        while lines := file.readlines(CHUNK_BYTES):
            model.encode([line.strip() for line in lines], num_threads=1)


def prepare_here(text: str, tokenizer: str, out: str, workers: str) -> None:
    """Prepare `text`, as each process of a measured way does; without workers, encode it alone."""
    if workers == "0":
        encode_alone(text, tokenizer)
        return
    if not mpi.started():
        prepare([text], tokenizer, out, workers=int(workers))
        return
    from ds_minimodel.data.workers import MpiRanks

    ranks = MpiRanks(mpi.world())
    ranks.from_main(lambda: prepare([text], tokenizer, out, ranks=ranks))
    mpi.end()


def measure(launcher: list[str], workers: int, text: Path, tokenizer: Path, out: Path) -> dict:
    """Run prepare_here under a launcher; return {seconds, CPU seconds, MiB}."""
    command = [*launcher, sys.executable, __file__, "--here", str(text), str(tokenizer), str(out), str(workers)]
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
    seconds, after = time.monotonic() - began, os.times()
    cpu_seconds = sum(after[2:4]) - sum(before[2:4])  # of the children: user and system
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 2),
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
    start = max(0, size - (1 << 16))
    with open(path, "rb") as file:
        file.seek(start)
        return start + file.read(size - start).rindex(b"\n") + 1


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--megabytes", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--workers", default="1,2", help="numbers of data.workers; default: %(default)s")
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks under mpirun, or none; default: %(default)s")
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
        ways: dict[str, tuple[list[str], int]] = {
            ALONE: ([], 0),
            **{f"prepare, workers: {count}": ([], count) for count in numbers(options.workers)},
            **{
                f"mpirun -n {ranks}": (["mpirun", "--oversubscribe", "-n", str(ranks)], 1)
                for ranks in numbers(options.ranks)
            },
        }
        stores: list[dict] = []
        tokens = 0
        seen: dict[str, list[dict]] = {way: [] for way in ways}
        for way in [*ways] * options.rounds:
            figures = measure(*ways[way], folder / "text.txt", folder / "tokenizer", folder / "store")
            seen[way].append(figures)
            print(way, figures, file=sys.stderr)
            if way != ALONE:
                manifest = read_manifest(folder / "store")
                stores.append(manifest["files"])
                tokens = manifest["tokens"]
                assert stores[-1] == stores[0], f"{way}: not the bytes of the first way"
                shutil.rmtree(folder / "store")
    alone = least_cpu(seen[ALONE])
    if options.out:
        write_json(
            options.out,
            {
                "cores": os.cpu_count(),
                "date": time.strftime("%Y-%m-%d"),
                "megabytes": options.megabytes,
                "vocab_size": VOCAB_SIZE,
                "texts": [Path(text).name for text in options.texts],
                "tokens": tokens,
                "ways": {way: summary(rounds, tokens, alone) for way, rounds in seen.items()},
            },
        )


def numbers(text: str) -> list[int]:
    """The numbers of a list with commas; none of an empty one."""
    return [int(number) for number in text.split(",") if number]


def least_cpu(rounds: list[dict]) -> float:
    """CPU seconds of the fastest round: others on the machine only add to it."""
    return min(figures["cpu_seconds"] for figures in rounds)


def summary(rounds: list[dict], tokens: int, alone: float) -> dict:
    """Median rate, least CPU time and its share, and the peaks of memory, over the rounds of one way."""
    return {
        "tokens_per_second": round(statistics.median(tokens / figures["seconds"] for figures in rounds)),
        "tokens_per_cpu_second": round(tokens / least_cpu(rounds)),
        "share": round(alone / least_cpu(rounds), 3),
        "cpu_seconds": least_cpu(rounds),
        "largest_process_mib": max(figures["largest_process_mib"] for figures in rounds),
        "all_processes_mib": max(figures["all_processes_mib"] for figures in rounds),
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
