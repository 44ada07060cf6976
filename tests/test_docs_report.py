"""The commands that docs/report.md and recipes/repro.yaml name are ones that the command line and recipes take."""

import re
import shlex
from pathlib import Path

import pytest

from ds_minimodel.analysis.join import settings_of
from ds_minimodel.analysis.runs import Run
from ds_minimodel.cli import parse
from ds_minimodel.config import load_recipe

ROOT = Path(__file__).parents[1]


def commands(text):
    """Lines of `text` that start with ds-minimodel, comment signs aside; a backslash joins the next one."""
    lines = re.sub(r"\\\n#? *", "", text).splitlines()
    return [shlex.split(line.lstrip("# ")) for line in lines if re.match(r"[# ]*ds-minimodel (run|report) ", line)]


def arguments_of(path):
    return [words[1:] for words in commands((ROOT / path).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path, number", [("docs/report.md", 1), ("recipes/repro.yaml", 4)])
def test_commands_are_taken(path, number):
    found = arguments_of(path)
    assert len(found) == number
    for arguments in found:
        options = parse(arguments)
        recipe = load_recipe(ROOT / options.recipe, options.overrides)
        assert recipe.workdir.startswith("runs/repro")
        assert bool(getattr(options, "others", [])) == (arguments[0] == "report")


def test_the_ablations_of_repro_differ_in_what_they_are_named_for():
    def settings(overrides, system):
        recipe = load_recipe(ROOT / "recipes/repro.yaml", overrides).model_dump(mode="json")
        return settings_of(Run("", recipe, {"base": None}, {}, [], [], [], [], {}, {}), system)

    runs = [parse(arguments).overrides for arguments in arguments_of("recipes/repro.yaml") if arguments[0] == "run"]
    depth, seed, progressive = runs
    repro, other = settings([], "minijoint"), settings(depth, "minijoint")
    assert {key for key in repro if repro[key] != other[key]} == {"mini.depth"}
    assert settings(seed, "minijoint") == repro
    assert settings(progressive, "multijoint")["adapt.depth_schedule"] == [[4, 0.5], [8, 0.25], [12, 0.25]]
