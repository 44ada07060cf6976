"""Format, lint and types of the whole tree, as pyproject.toml configures them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("check", ["ruff check", "ruff format --check", "mypy"])
def test_the_tree_passes(check):
    done = subprocess.run(
        [sys.executable, "-m", *check.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{check}\n{done.stdout}{done.stderr}"
