"""Ranks that end by a mistake: no thread of a library outlives Python."""

import subprocess
from pathlib import Path


def test_ranks_end_the_threads_of_libraries_first(start_ranks, tmp_path):
    program = Path(__file__).parent / "end_ranks.py"
    process = start_ranks(2, program, tmp_path, stdout=subprocess.PIPE, text=True)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == 2
    assert said.count("left: []") == 2, said
