"""Token stores of many GB: opening them, their table of blocks, drawing samples."""

import argparse
import os
import resource
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device import CLOCKS
from benchmarks.processes import Contestant, Failed
from benchmarks.record import table
from ds_minimodel.common.files import MANIFEST, sha256_of_file, write_json
from ds_minimodel.data.samples import BlockTable, SampleReader
from ds_minimodel.data.store import TokenStore, id_type, shard_name, write_shard
from ds_minimodel.models.objectives import OBJECTIVES, Sampler
from ds_minimodel.models.objectives.objective import TextObjective
from ds_minimodel.report.render import Table
from ds_minimodel.tokenizers.tokenizer import trained_layout

SHARD_TOKENS = 64_000_000  # of a store's shard: 256 MiB of text
VOCABULARY = 50_000
LENGTH = 512
# Samples of a batch drawn from a store
SAMPLE_BATCH = 256
BATCHES = 40
USUAL_FILES = 1024  # that a process may open

PAGE = f"""Token stores of many GB
Sparse files of {SHARD_TOKENS:,} ids of 16 bits a shard, opened by a fresh process that may have
{USUAL_FILES:,} files open; {BATCHES} batches of {SAMPLE_BATCH} samples of {LENGTH} tokens, nearly
each in a piece not read before and so checked: the first batch, and the median of all. Memory: what
the process has more at the end. Half of that many files stay open, two of a shard: from 256 shards
on they are opened again and again, which a higher limit spares. Real files of this size also wait
for the disk."""


def arguments(parser: argparse.ArgumentParser) -> None:
    sizes = [1, 3, 10, 30, 100, 300]
    parser.add_argument(
        "--gigabytes", type=float, nargs="+", default=sizes, help="of stores; default: 1 to 300"
    )
    parser.add_argument("--folder", help="where they are made for a while; default: TMPDIR")


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each size."""
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(prefix="stores-", dir=options.folder) as folder:
            path = Path(folder, "tokens")
            shards = sparse_store(path, gigabytes, VOCABULARY)
            try:
                with Contestant("stores", time_limit=options.time_limit) as contestant:
                    (found,) = contestant.ask(time_store, folder=str(path), clock=options.clock)
                yield {"gigabytes": gigabytes, "shards": shards, **found}
            except Failed as failure:
                yield {"name": f"{gigabytes:g} GB", "error": str(failure)}


def sparse_store(folder: Path, gigabytes: float, vocab_size: int) -> int:
    """Make a token store of so many GB of ids 0 that takes no place on the disk; return the number
    of its shards.
    """
    shards = max(1, round(gigabytes * 1e9 / id_type(vocab_size).itemsize / SHARD_TOKENS))
    folder.mkdir()
    facts: dict[str, Any] = {}
    for number in range(shards):
        path = folder / shard_name(number)
        if number == 0:  # the others are the same
            with write_shard(folder, 0, vocab_size, "00" * 32) as add:
                add([], [SHARD_TOKENS // 64] * 64)
            os.truncate(path.with_suffix(".bin"), SHARD_TOKENS * id_type(vocab_size).itemsize)
            kept = {
                file.suffix: (file.stat().st_size, sha256_of_file(file))
                for file in sorted(folder.iterdir())
            }
            content = {".idx": path.with_suffix(".idx").read_bytes()}
        for suffix, (size, sha256) in kept.items():
            file = path.with_suffix(suffix)
            file.write_bytes(content.get(suffix, b""))
            os.truncate(file, size)
            facts[file.name] = {"bytes": size, "sha256": sha256}
    manifest = {
        "kind": "token_store",
        "shards": shards,
        "tokenizer_sha256": "00" * 32,
        "files": facts,
    }
    write_json(folder / MANIFEST, manifest | trained_layout(vocab_size).facts())
    return shards


def time_store(folder: str, clock: str) -> dict[str, Any]:
    """Open a store, make its table of blocks, draw samples: seconds, and MiB that this process has
    more at the end.
    """
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (USUAL_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    now = CLOCKS[clock]
    before = memory()
    start = now()
    store = TokenStore(folder)
    opened = now()
    blocks = BlockTable(store, "none", LENGTH)
    built = now()
    objective = OBJECTIVES["masked-lm"]
    assert isinstance(objective, TextObjective)
    batches = []
    sampler = Sampler(SampleReader(store, blocks, 1), objective, objective.settings())
    for number in range(BATCHES):
        begin = now()
        sampler.batch(number * SAMPLE_BATCH, (number + 1) * SAMPLE_BATCH)
        batches.append((now() - begin) / SAMPLE_BATCH)
    return {
        "open_seconds": opened - start,
        "table_seconds": built - opened,
        "first_sample_seconds": batches[0],
        "sample_seconds": statistics.median(batches),
        "grown_mib": {key: round(value - before[key], 1) for key, value in memory().items()},
    }


def memory() -> dict[str, float]:
    """MiB of this process: its own, and of files that it maps."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile")}


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    columns = [
        "GB",
        "shards",
        "open, s",
        "table, s",
        "first samples, µs",
        "a sample, µs",
        "MiB: its own",
        "of files",
    ]
    lines = [
        [
            f"{row['gigabytes']:g}",
            f"{row['shards']:,}",
            f"{row['open_seconds']:.3f}",
            f"{row['table_seconds']:.2f}",
            f"{1e6 * row['first_sample_seconds']:.0f}",
            f"{1e6 * row['sample_seconds']:.0f}",
            *(f"{row['grown_mib'][key]:g}" for key in ("RssAnon", "RssFile")),
        ]
        for row in rows
    ]
    return [table("A store of N GB", columns, lines)]
