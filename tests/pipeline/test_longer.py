"""Step 2 that goes on to more steps: with the bits of an undisturbed run."""

import json
import shutil
import signal

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.pipeline import training
from tests.helpers.commands import refused
from tests.helpers.files import read_json
from tests.pipeline.conftest import assert_same_weights, held_out

from ..forks import Fork, killed_after
from .conftest import copy_of, make_world

pytestmark = pytest.mark.slow

ADAPT = "adapt/minijoint/xx"
SCORES = "evaluate/minijoint/xx/topic/seed-3"
RUN = ("systems=[minijoint]", "finetune.seeds=1", "data.held_out=0.3", "adapt.schedule=wsd")
LONG = ("adapt.steps=32",)  # instead of 8; the rate falls in the last 6, instead of 2


def of(recipe):
    """Overrides of a recipe with one task."""
    text = ", ".join(
        f"{language}: {recipe.parent}/topic.{language}.jsonl" for language in ("en", "xx")
    )
    task = f"{{kind: classification, train: {recipe.parent}/topic.en.jsonl, test: {{{text}}}}}"
    return (*RUN, f"finetune.tasks={{topic: {task}}}")


def with_many_samples(arguments):
    """`ds-minimodel ARGUMENTS`; steps, where they decide how many held-out samples there are, do so
    from few on.
    """
    training.MAX_COST = 5.0
    main(arguments)


def do(*arguments):
    fork = Fork(f"{__name__}:with_many_samples", [*map(str, arguments)])
    out, err = fork.communicate()
    assert fork.returncode == 0, err
    return out


def checkpoints(recipe):
    return sorted(
        path.name for path in (recipe.parent / "run" / ADAPT / "run/checkpoints").iterdir()
    )


def scores(recipe):
    return read_json(recipe.parent / "run" / SCORES / "scores.json")


def status(recipe, *overrides):
    """{job: (state, why)} of what there is anything to say of."""
    rows = json.loads(do("status", recipe, "--json", *overrides))["jobs"]
    return {
        row["name"]: (row["state"], row["why"])
        for row in rows
        if row["state"] != "complete" or row["why"]
    }


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Recipe of a finished run of 8 steps."""
    recipe = make_world(tmp_path_factory.mktemp("short"))
    do("run", recipe, *of(recipe))
    return recipe


@pytest.fixture(scope="module")
def long(short, tmp_path_factory):
    """Recipe of a run of 32 steps that nothing disturbed."""
    recipe = copy_of(short, tmp_path_factory.mktemp("long"))
    for step in ("adapt", "evaluate"):
        shutil.rmtree(recipe.parent / "run" / step)
    do("run", recipe, *of(recipe), *LONG)
    return recipe


def test_a_finished_run_goes_on_and_is_scored_again(short, long, tmp_path):
    recipe = copy_of(short, tmp_path)
    shutil.rmtree(recipe.parent / "run" / ADAPT / "snapshots/step-00000004")
    do("run", recipe, *of(recipe))
    assert_same_weights(recipe.parent / "run", short.parent / "run")
    assert checkpoints(recipe) == ["latest", "step-00000006"]
    command = (*of(recipe), *LONG)
    assert status(recipe, *command) == {ADAPT: ("pending", "continues: adapt.steps: 8 -> 32")}
    kill = Fork(
        f"{killed_after.__module__}:killed_after", "step-00000030", ["adapt", str(recipe), *command]
    )
    assert kill.wait() == -signal.SIGKILL
    assert {"step-00000026", "step-00000030"} <= {*checkpoints(recipe)}
    do("run", recipe, *command, "--rebuild")
    assert status(recipe, *command) == {}
    assert checkpoints(recipe) == ["latest", "step-00000026"]
    assert_same_weights(recipe.parent / "run", long.parent / "run")
    assert scores(recipe) == scores(long)
    assert held_out(recipe.parent / "run", ADAPT) == held_out(long.parent / "run", ADAPT), (
        "of the same samples"
    )
    assert not list((recipe.parent / "run").rglob("*.old-*")), "what goes on is not stale"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["adapt.steps=7"], "(adapt.steps: 8 -> 7); use another"),
        (
            ["adapt.steps=16", "adapt.schedule=linear"],
            "(adapt.schedule: wsd -> linear); use another workdir",
        ),
        (["adapt.steps=16", "adapt.lr=1e-3"], "(adapt.lr: 0.002 -> 0.001); use another workdir"),
        (
            ["adapt.warmup_steps=~"],
            "schedule wsd: give warmup_steps; a share of the steps would grow with them",
        ),
        (["adapt.warmup_steps=7"], "warmup_steps 7 and a decay of 2 steps do not fit into steps 8"),
    ],
)
def test_what_cannot_go_on_is_refused(short, overrides, message):
    assert message in refused(f"run {short}", *of(short), *overrides)
