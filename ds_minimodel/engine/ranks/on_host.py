"""The program that launch.py, or hosts.py over ssh, starts on each host: it reports the host's facts or runs its ranks.

python -m ds_minimodel.engine.ranks.on_host facts
python -m ds_minimodel.engine.ranks.on_host ARGUMENTS OF deepspeed.launcher.launch
"""

import json
import os
import signal
import sys
import threading

from ds_minimodel import __version__
from ds_minimodel.engine.ranks.launch import gpus
from ds_minimodel.engine.ranks.rendezvous import free_port
from ds_minimodel.engine.zero.start import run_launcher


def facts() -> dict:
    """Facts of this host for the process that starts a run. `address`: the one at which ssh reached it."""
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "gpus": len(gpus()),
        "address": os.environ["SSH_CONNECTION"].split()[2],
        "port": free_port(),
    }


def run_ranks() -> None:
    """Run this host's ranks under DeepSpeed's launcher. When this process's input is closed, they save and end."""
    threading.Thread(target=_end_with_input, args=(os.dup(0),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks must not hold it open
    run_launcher()


def _end_with_input(descriptor: int) -> None:
    while os.read(descriptor, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1:] == ["facts"]:
        print(json.dumps(facts()))
    else:
        run_ranks()
