"""`ds-minimodel flops` on the command line, and a front door that opens without torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ds_minimodel(*arguments, **environment):
    command, env = [sys.executable, "-m", "ds_minimodel", *arguments], {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, text=True, timeout=60, capture_output=True, env=env)


def test_a_table_for_people_and_overrides():
    done = ds_minimodel("flops", "paper", "systems=[bl_base]", "adapt.steps=62500")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "adapt" in line and line.startswith("|")]
    assert "27.0" in line  # half of 54.05


@pytest.mark.parametrize(
    "arguments, expected", [(["--help"], "adapt"), (["adapt", "--help"], "--zero"), (["flops", "paper"], "54.1")]
)
def test_answers_without_torch(tmp_path, arguments, expected):
    """A torch that cannot be imported stands before the real one."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch was asked for')")
    done = ds_minimodel(*arguments, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
