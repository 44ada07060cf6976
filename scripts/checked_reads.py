"""What checking the pieces of a token store costs a sample, with pieces of several sizes.

Usage: python scripts/checked_reads.py [--megabytes 1000] [--report FILE]
Checks the bytes of random samples (`CheckedPieces.read`, as `TokenStore.read` does) of a file that was just opened, so
that nearly every one lies in a new piece, and then of the same samples again. The time of new pieces holds the page
faults that reading the sample would have otherwise.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from ds_minimodel import __version__
from ds_minimodel.benchmark.peaks import device_name
from ds_minimodel.common import checksums
from ds_minimodel.common.checksums import CheckedPieces, Reader, checksums_of
from ds_minimodel.common.files import write_json

PIECES = (1 << 13, 1 << 15, 1 << 20)  # bytes; the first is what stores have
SAMPLE_BYTES, BATCH, ROUNDS = 2 * 511, 256, 41


def times_of_checks(path: Path, number: int) -> tuple[float, float]:
    """Microseconds of a sample's check where its pieces are new, and again; the mean of a batch."""
    with open(path, "rb") as file:
        sums = checksums_of(file)
    draw = np.random.default_rng(number)
    starts = draw.integers(0, path.stat().st_size - SAMPLE_BYTES, BATCH).tolist()
    pieces = CheckedPieces(
        path, path.stat().st_size, Reader().of(path), lambda first, last: sums.data.cast("B")[first:last].tobytes(), ""
    )
    found = []
    for _ in range(2):
        begin = time.thread_time()
        for start in starts:
            pieces.read(start, start + SAMPLE_BYTES)
        found.append((time.thread_time() - begin) / BATCH * 1e6)
    return found[0], found[1]


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="of the file; default: %(default)s")
    parser.add_argument("--report", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    seen: dict[int, list[tuple[float, float]]] = {size: [] for size in PIECES}
    with tempfile.TemporaryDirectory(prefix="checked-reads-") as temporary:
        path = Path(temporary) / "00000.bin"
        np.random.default_rng(0).integers(0, 256, options.megabytes * 10**6, np.uint8).tofile(path)
        for number in range(ROUNDS):
            for size in PIECES:  # they take turns
                checksums.PIECE_BYTES = size
                seen[size].append(times_of_checks(path, number))
    report = {
        "microseconds_a_sample": {
            str(size): {
                way: [round(quantile, 2) for quantile in statistics.quantiles(values, n=4)]
                for way, values in zip(("new pieces", "again"), zip(*times, strict=True), strict=True)
            }
            for size, times in seen.items()
        },
        "quantiles": "quartiles over the rounds",
        "rounds": ROUNDS,
        "megabytes": options.megabytes,
        "sample_bytes": SAMPLE_BYTES,
        "device": f"{device_name()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ds_minimodel": __version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(report)
    if options.report:
        write_json(options.report, report)


if __name__ == "__main__":
    main()
