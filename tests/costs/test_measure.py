"""`plan --measure`: some updates of a step through the real training path, before there is text or
a body.
"""

import json

import pytest

from ds_minimodel.cli import costs
from ds_minimodel.cli.main import main
from ds_minimodel.launch.hosts import CPU

from ..forks import COMMAND, run, start_ranks
from ..pipeline.conftest import RECIPE


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize(
    "step, systems, measured",
    [
        (
            "pretrain",
            "bl_base, minipost, minijoint",
            ["bl_base", "minijoint"],
        ),  # minipost's body is bl_base's
        ("build-mini", "minipost, minijoint", ["minipost"]),
        ("adapt", "minijoint", ["minijoint"]),
    ],
)
def test_a_few_updates_say_what_all_take(recipe, step, systems, measured):
    code, out, err = run(
        "plan", recipe, f"systems=[{systems}]", "--measure", "--step", step, "--json"
    )
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [row["system"] for row in rows] == measured
    for row in rows:
        assert row["steps"] == 8 and row["hours"] == pytest.approx(8 * row["seconds"] / 3600)
        assert row["tokens_per_second"] == pytest.approx(8 * 32 / row["seconds"])
    assert list(recipe.parent.iterdir()) == [recipe]


def test_on_several_ranks(recipe, monkeypatch):
    """Forks are in the place of the ranks that a launcher would start."""
    said = []

    def launch(arguments, ranks):
        started = start_ranks(ranks, COMMAND, [str(argument) for argument in arguments])
        said.extend(rank.communicate() for rank in started)
        return max(rank.returncode for rank in started)

    for name, value in CPU.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(costs.launch, "launch", launch)
    with pytest.raises(SystemExit) as end:
        main(["plan", str(recipe), "systems=[minijoint]", "--measure", "--ranks", "2"])
    (out, err), (nothing, _) = said
    assert end.value.code == 0, err
    assert "| MiniJoint | adapt |" in out and "Ranks: 2" in out and not nothing
    assert list(recipe.parent.iterdir()) == [recipe]


def test_a_step_that_no_system_has_is_refused(recipe):
    code, _, err = run("plan", recipe, "systems=[minijoint]", "--measure", "--step", "build-mini")
    assert code == 2 and "--step build-mini: the recipe's systems have no such step" in err
