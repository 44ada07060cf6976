"""What launchers start: each rank joins, says who it is, and one may be killed while the others wait for it.

Usage: who.py [RANK SIGNAL]
"""

import os
import sys

from ds_minimodel.engine.world import start


def main(rank=None, number=None):
    world = start()
    facts = world.gather(lambda: [world.rank, world.size, int(os.environ["LOCAL_RANK"]), world.sum(world.rank + 1)[0]])
    if world.is_main:
        print(f"ranks: {facts}", flush=True)
    if rank == str(world.rank):
        os.kill(os.getpid(), int(number))
    world.barrier()


if __name__ == "__main__":
    main(*[word for word in sys.argv[1:] if not word.startswith("-")])
