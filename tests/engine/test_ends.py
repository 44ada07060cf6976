"""The end of ranks: done or not, no thread of a library outlives Python, which could abort the process."""

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("end, code", [("done", 0), ("mistake", 2)])
def test_ranks_end_the_threads_of_libraries_first(start_ranks, tmp_path, end, code):
    program = Path(__file__).parent / "end_ranks.py"
    process = start_ranks(2, program, tmp_path, end, stdout=subprocess.PIPE, text=True)
    said = process.communicate(timeout=200)[0]
    assert process.returncode == code
    assert said.count("left: []") == 2, said
