"""A program for launchers to start: ranks join, say who they are, and one may be killed while the others wait for it.

Usage: who.py [RANK SIGNAL]
"""

import os
import signal
import sys

from ds_minimodel.engine.ranks.world import join_ranks


def main(rank=None, number=None):
    world = join_ranks()
    (total,) = world.sum(world.rank + 1)
    facts = world.gather(lambda: [world.rank, world.size, int(os.environ["LOCAL_RANK"]), total])
    if world.is_main:
        print(f"ranks: {facts}", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of a launcher that is faster than the ranks themselves
    world.barrier()
    if rank == str(world.rank):
        os.kill(os.getpid(), int(number))
    world.barrier()


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if not word.startswith("-")])
