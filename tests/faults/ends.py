"""Ends of two ranks, as many as fit into some minutes, while other processes keep the cores busy.

    python -m tests.faults.ends [MINUTES [BUSY]]

Ranks meet, add numbers and end as those of a command do, as unluckily as can be: collectives that nobody waits for are
still under way, and Python is kept from their threads until it ends. Every rank is a fork of this process, which has
loaded what takes long to load. Exit code 1 where one ended with another code than 0.
"""

import argparse
import atexit
import os
import signal
import sys
import time
from unittest import mock

import torch
import torch.distributed as dist

from ds_minimodel.cli import main as command_line
from ds_minimodel.engine.ranks.rendezvous import free_port
from ds_minimodel.engine.ranks.world import join_ranks
from ds_minimodel.engine.zero import start

PAIRS_AT_ONCE, UNDER_WAY = 3, 500


def main(minutes=5, busy=8):
    start.configure()
    spinners = [fork(spin, os.getpid()) for _ in range(int(busy))]
    deadline, running, pairs, codes = time.monotonic() + 60 * float(minutes), set(), 0, []
    while running or time.monotonic() < deadline:
        while len(running) < 2 * PAIRS_AT_ONCE and time.monotonic() < deadline:
            port, pairs = free_port(), pairs + 1
            running |= {fork(end_as_rank, rank, port) for rank in (0, 1)}
        pid, status = os.wait()
        running.remove(pid)
        codes.append(os.waitstatus_to_exitcode(status))
    for pid in spinners:
        os.kill(pid, signal.SIGKILL)
    failed = [code for code in codes if code]
    print(f"{pairs} pairs of ranks beside {busy} busy processes: {len(failed)} failed {failed}")
    return 1 if failed else 0


def fork(function, *arguments):
    """The id of a new process that calls a function and ends as Python does."""
    pid = os.fork()
    if not pid:
        sys.exit(function(*arguments))
    return pid


def spin(parent):
    while os.getppid() == parent:
        sum(range(100_000))


def end_as_rank(rank, port):
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()})
    with mock.patch.object(command_line, "parse", lambda _: argparse.Namespace(run=meet)):
        command_line.main([])


def meet(_options):
    atexit.register(sum, range(1_000_000))  # called after those of join_ranks; it keeps Python's lock all the time
    world = join_ranks()
    world.sum(world.rank)
    world.from_main(lambda: "done")
    for _ in range(UNDER_WAY):
        dist.all_reduce(torch.ones(1), group=world.host_group, async_op=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
