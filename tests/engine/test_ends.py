"""Ranks that end by a mistake: no thread of a library outlives Python. tests/faults/ends.py has those that are done."""

import os
import subprocess
from pathlib import Path

from ds_minimodel.engine.ranks.launch import CPU, launcher_command
from ds_minimodel.engine.ranks.rendezvous import free_port

HERE = Path(__file__).parent


def test_ranks_end_the_threads_of_libraries_first(tmp_path):
    program = [HERE / "end_ranks.py", tmp_path]
    command = launcher_command({"localhost": [0, 1]}, 0, "127.0.0.1", free_port(), program)
    environment = {**os.environ, **CPU, "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    said = process.stdout.read()
    assert process.wait(200) == 2
    assert said.count("left: []") == 2, said
