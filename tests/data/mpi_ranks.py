"""What mpirun starts: prepare on all its ranks, a chunk of a few lines at a time.

Usage: mpi_ranks.py TEXT TOKENIZER OUT SHARD_BYTES [RANK AFTER]. Rank RANK, where given, kills
itself when rank 0 has written AFTER shards.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from ds_minimodel.cli.main import USER_ERROR
from ds_minimodel.common.errors import OtherRankError, UserError
from ds_minimodel.data import prepare
from ds_minimodel.launch.process import processes_of_mpirun
from ds_minimodel.text import reader
from ds_minimodel.text.workers import MpiRanks


def kill_after(shards, folder):
    def watch():
        while (
            not folder.exists() or sum(path.suffix == ".idx" for path in folder.iterdir()) < shards
        ):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main(text, tokenizer, out, shard_bytes, rank=None, after=None):
    reader.CHUNK_BYTES = 5000
    ranks = MpiRanks.join(processes_of_mpirun())
    if rank is not None and ranks.comm.rank == int(rank):
        kill_after(int(after), Path(f"{out}.tmp"))
    pause = 0.05 if rank is not None else 0.0
    try:
        ranks.broadcast_from_rank0(
            lambda: prepare.prepare(
                prepare.StoreText([text]),
                tokenizer,
                out,
                shard_bytes=int(shard_bytes),
                ranks=ranks,
                progress=lambda *_: time.sleep(pause),
            )
        )
        print(
            ranks.broadcast_from_rank0(lambda: f"rank 0 says to {ranks.comm.size}: done"),
            flush=True,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(USER_ERROR)
    except OtherRankError:
        sys.exit(USER_ERROR)
    ranks.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
