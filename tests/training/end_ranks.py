"""Ranks that train and end with a mistake as those of a command do, and then print which threads of libraries are left.

Usage: end_ranks.py FOLDER
"""

import argparse
import atexit
import sys
import threading
from pathlib import Path
from unittest import mock

from synthetic import run_config, train

from ds_minimodel.cli import main as command_line
from ds_minimodel.common.errors import UserError
from ds_minimodel.training.ranks.world import join_ranks


def work(options):
    atexit.register(name_threads)  # called after those of join_ranks
    world = join_ranks()
    train(world, options.folder, run_config(zero_stage=1, checkpoint_every=2))
    raise UserError("a mistake that both ranks find")


def name_threads():
    known = {str(thread.native_id) for thread in threading.enumerate()}
    tasks = [path for path in Path("/proc/self/task").iterdir() if path.name not in known]
    names = [(path / "comm").read_text().strip() for path in tasks]
    print(
        f"left: {[name for name in names if not name.startswith('jemalloc')]}", flush=True
    )  # that one knows no Python


if __name__ == "__main__":
    options = argparse.Namespace(run=work, folder=Path(sys.argv[-1]))  # the launcher puts --local_rank first
    with mock.patch.object(command_line, "parse", lambda _: options):
        command_line.main([])
