"""`plan --measure`: some updates of a step through the real training path, before there is text or a body."""

import json

import pytest

from ..forks import run
from ..pipeline.conftest import RECIPE


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize(
    "step, systems, measured",
    [
        ("pretrain", "bl_base, minipost, multijoint", ["bl_base", "multijoint"]),  # minipost's body is bl_base's
        ("build-mini", "minipost, multijoint", ["minipost"]),
        ("adapt", "multijoint", ["multijoint"]),  # at each of its depths
    ],
)
def test_a_few_updates_say_what_all_take(recipe, step, systems, measured):
    code, out, err = run("plan", recipe, f"systems=[{systems}]", "--measure", "--step", step, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [row["system"] for row in rows] == measured
    for row in rows:
        assert row["steps"] == 8 and row["hours"] == pytest.approx(8 * row["seconds"] / 3600)
        assert row["tokens_per_second"] == pytest.approx(8 * 32 / row["seconds"])
    assert list(recipe.parent.iterdir()) == [recipe]


def test_on_several_ranks(recipe):
    code, out, err = run("plan", recipe, "systems=[multijoint]", "--measure", "--ranks", "2")
    assert code == 0, err
    assert "| MultiJoint | adapt |" in out and "Ranks: 2" in out and list(recipe.parent.iterdir()) == [recipe]


def test_a_step_that_no_system_has_is_refused(recipe):
    code, _, err = run("plan", recipe, "systems=[multijoint]", "--measure", "--step", "build-mini")
    assert code == 2 and "--step build-mini: the recipe's systems have no such step" in err
