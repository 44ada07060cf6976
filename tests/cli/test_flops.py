"""`ds-minimodel flops` against the numbers in the paper, and a front door that opens without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ds_minimodel(*arguments, **environment):
    command, env = [sys.executable, "-m", "ds_minimodel", *arguments], {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, text=True, timeout=60, capture_output=True, env=env)


@pytest.fixture(scope="module")
def rows():
    done = ds_minimodel("flops", "paper", "--json")
    assert done.returncode == 0, done.stderr
    return {(row["system"], row["step"]): row for row in json.loads(done.stdout)["rows"]}


def test_rows_of_the_papers_recipe(rows):
    """The paper's figures themselves: tests/models/test_flops.py."""
    assert round(rows["minijoint", "adapt"]["formula_eflops"], 1) == 21.1
    assert all(0.8 < row["executed_eflops"] / row["formula_eflops"] < 1 for row in rows.values())


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
