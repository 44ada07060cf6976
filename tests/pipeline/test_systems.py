"""A system is one declaration: a sixth one, declared in a test alone, goes through flops, plan and a whole run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel.engine.ranks.launch import CPU

from .conftest import ROOT, make_world

SIXTH = Path(__file__).parent / "sixth_system.py"
OVERRIDES = ("systems=[bl_base, minijoint, jointpost]", "adapt.depth_schedule=[]", "finetune.seeds=1")


def sixth(*arguments):
    """Standard output of `ds-minimodel ARGUMENTS` where there is a sixth system."""
    environment = {**os.environ, **CPU, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, SIXTH, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("sixth"))


@pytest.mark.parametrize("command", ["flops", "plan"])
def test_a_sixth_system_has_costs_and_a_plan(recipe, command):
    rows = json.loads(sixth(command, recipe, *OVERRIDES, "--json"))["rows"]
    steps = {row["step"]: row for row in rows if row["system"] == "jointpost"}
    assert list(steps) == ["pretrain", "build-mini", "adapt"]
    others = {row["step"]: row for row in rows if row["system"] == "minijoint"}
    assert steps["pretrain"] == {**others["pretrain"], "system": "jointpost"}
    assert steps["adapt"] != {**others["adapt"], "system": "jointpost"}


def test_a_sixth_system_runs_to_a_report(recipe):
    sixth("run", recipe, *OVERRIDES)
    workdir = recipe.parent / "run"
    assert sorted(path.name for path in (workdir / "pretrain").iterdir() if path.is_dir()) == ["bl_base", "minijoint"]
    assert (workdir / "build-mini/jointpost/mini/model.safetensors").is_file()
    rows = json.loads((workdir / "report/scores.json").read_text())
    assert {(row["task"], row["step"]) for row in rows if row["system"] == "jointpost"} == {
        (task, step) for task in ("topic", "qa") for step in (0, 4, 8)
    }
    page = (workdir / "report/report.md").read_text()
    assert "| JointPost |" in page and "JointPost, unadapted" in page


def test_a_recipe_with_a_system_that_nobody_declared_is_refused(recipe):
    done = subprocess.run(
        [sys.executable, "-m", "ds_minimodel", "flops", recipe, *OVERRIDES], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "systems.2: Input should be 'bl_base'" in done.stderr and "'multijoint'" in done.stderr
