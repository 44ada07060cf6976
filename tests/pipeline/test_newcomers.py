"""A body, an objective and a system are one declaration each: newcomers.py has them, and nothing
else knows them.
"""

import json

import pytest

from tests.helpers.files import read_json, read_json_lines

from ..forks import Fork
from .conftest import make_world

pytestmark = pytest.mark.slow

COMMAND = "tests.pipeline.newcomers:main"
OVERRIDES = ["model.kind=toy", "systems=[minijoint, jointpost]", "finetune.seeds=1"]
HELD_OUT = "data.held_out=0.1"
OVERRIDES += [HELD_OUT]


def start(*arguments):
    """`ds-minimodel ARGUMENTS` where there are the newcomers, in the background."""
    return Fork(COMMAND, [*map(str, arguments)])


def newcomers(*arguments, code=0):
    """Standard output of the same, once it has ended with the exit code `code`; else standard
    error.
    """
    process = start(*arguments)
    out, err = process.communicate()
    assert process.returncode == code, err
    return err if code else out


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Workdir of a run to a report."""
    recipe = make_world(tmp_path_factory.mktemp("newcomers"))
    newcomers("run", recipe, *OVERRIDES)
    return recipe.parent / "run"


def test_costs_and_plans_read_the_declarations(tmp_path):
    recipe = make_world(tmp_path)
    for command in ("flops", "plan"):
        rows = json.loads(newcomers(command, recipe, *OVERRIDES, "--json"))["rows"]
        steps = {row["step"]: row for row in rows if row["system"] == "jointpost"}
        others = {row["step"]: row for row in rows if row["system"] == "minijoint"}
        assert list(steps) == ["pretrain", "build-mini", "adapt"]
        assert steps["pretrain"] == {**others["pretrain"], "system": "jointpost"}
        assert steps["adapt"] != {**others["adapt"], "system": "jointpost"}


def test_they_train_to_a_report(workdir):
    body = read_json(workdir / "pretrain/minijoint/model/manifest.json")["body"]
    assert body["architecture"]["kind"] == "toy"
    assert body["objective"] == "unswap"
    first, *lines = read_json_lines(workdir / "pretrain/minijoint/run/metrics.jsonl")
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["held_out/nats_per_token"] < first["held_out/nats_per_token"]
    assert sorted(path.name for path in (workdir / "pretrain").iterdir() if path.is_dir()) == [
        "minijoint"
    ]
    assert (workdir / "build-mini/jointpost/mini/model.safetensors").is_file()
    rows = read_json(workdir / "report/scores.json")
    assert {(row["system"], row["task"], row["step"]) for row in rows} == {
        (system, task, step)
        for system in ("minijoint", "jointpost")
        for task in ("topic", "qa")
        for step in (0, 4, 8)
    }
    page = (workdir / "report/report.md").read_text()
    assert "| JointPost |" in page
    assert "JointPost, unadapted" in page


def test_a_library_that_does_not_have_the_kind_gets_no_export(workdir, tmp_path):
    error = newcomers("export-hf", workdir / "pretrain/minijoint/model", tmp_path / "out", code=2)
    assert error.count("\n") == 1
    assert "has no bodies of kind toy" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "override, said",
    [
        ("adapt.mask_prob=0.3", "adapt.mask_prob=0.3: unknown key"),
        ("model.longest_wave=x", "model.longest_wave=x: Input should be a valid number"),
    ],
)
def test_what_is_no_key_of_theirs_is_refused(tmp_path, override, said):
    assert said in newcomers("flops", make_world(tmp_path), *OVERRIDES, override, code=2)
