"""Step 2 that goes on to more steps: its bits are those of an undisturbed run, and what was scored is scored again."""

import json
import shutil

import pytest

from ..forks import run, start
from .conftest import copy_of, make_world, prepare, refused, run_two_ranks, stop_when
from .test_held_out import assert_same_weights

ADAPT, SCORES = "adapt/minijoint/xx", "evaluate/minijoint/xx/topic/seed-3"
RUN = ("systems=[minijoint]", "adapt.depth_schedule=[]", "finetune.seeds=1", "adapt.schedule=constant")
LONG = ("adapt.steps=40",)  # instead of 8; the rate falls in the last 8, instead of 2


def of(recipe):
    """Overrides of a recipe with one task."""
    text = ", ".join(f"{language}: {recipe.parent}/topic.{language}.jsonl" for language in ("en", "xx"))
    task = f"{{kind: classification, train: {recipe.parent}/topic.en.jsonl, test: {{{text}}}}}"
    return (*RUN, f"finetune.tasks={{topic: {task}}}")


def checkpoints(recipe):
    return sorted(path.name for path in (recipe.parent / "run" / ADAPT / "run/checkpoints").iterdir())


def status(recipe, *overrides):
    """{job: (state, why)} of what is not complete."""
    code, out, err = run("status", recipe, "--json", *overrides)
    assert code == 0, err
    rows = json.loads(out)["jobs"]
    return {row["name"]: (row["state"], row["why"]) for row in rows if row["state"] != "complete"}


def do(*arguments):
    code, _, err = run(*arguments)
    assert code == 0, err


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Recipe of a finished run of 8 steps."""
    recipe = make_world(tmp_path_factory.mktemp("short"))
    do("run", recipe, *of(recipe))
    return recipe


@pytest.fixture(scope="module")
def long(short, tmp_path_factory):
    """Recipe of a run of 16 steps that nothing disturbed."""
    recipe = copy_of(short, tmp_path_factory.mktemp("long"))
    for folder in ("adapt", "evaluate"):
        shutil.rmtree(recipe.parent / "run" / folder)
    do("run", recipe, *of(recipe), *LONG)
    return recipe


def test_a_finished_run_goes_on_and_is_scored_again(short, long, tmp_path):
    recipe = copy_of(short, tmp_path)
    assert checkpoints(recipe) == ["latest", "step-00000006"]
    command = (*of(recipe), *LONG)
    assert status(recipe, *command) == {ADAPT: ("pending", "goes on: adapt.steps: 8 -> 40")}
    process = start("adapt", recipe, *command)
    stop_when(process, lambda: "step-00000034" in checkpoints(recipe))
    assert {"step-00000032", "step-00000034"} <= {*checkpoints(recipe)}
    do("run", recipe, *command, "--rebuild")
    assert status(recipe, *command) == {} and checkpoints(recipe) == ["latest", "step-00000032"]
    assert_same_weights(recipe.parent / "run", long.parent / "run")
    scores = [path.parent / "run" / SCORES / "scores.json" for path in (recipe, long)]
    assert scores[0].read_text() == scores[1].read_text()
    assert not list((recipe.parent / "run").rglob("*.old-*")), "what goes on is not stale"


@pytest.mark.parametrize(
    "settings", [(), ("engine.tensor_parallel=2",), ("engine.zero_stage=3",)], ids=["stage 1", "split", "stage 3"]
)
def test_two_ranks_go_on_to_the_bits_of_an_undisturbed_run(tmp_path, settings):
    overrides = (*RUN, "finetune.tasks={}", *settings)
    folders = [tmp_path / name for name in ("disturbed", "undisturbed")]
    recipes = []
    for folder in folders:
        folder.mkdir()
        recipes.append(prepare(make_world(folder), *overrides))
    run_two_ranks(recipes[0], *overrides)
    run_two_ranks(recipes[0], *overrides, *LONG)
    run_two_ranks(recipes[1], *overrides, *LONG)
    assert_same_weights(recipes[0].parent / "run", recipes[1].parent / "run")


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["adapt.steps=7"], "(adapt.steps: 8 -> 7); they may grow where adapt.schedule is constant; use another"),
        (["adapt.steps=16", "adapt.schedule=linear"], "(adapt.steps: 8 -> 16); they may grow where adapt.schedule is"),
        (["adapt.steps=16", "adapt.lr=1e-3"], "(adapt.lr: 0.002 -> 0.001); use another workdir"),
        (["adapt.decay=0.5"], "(schedule: constant, decay 0.2 -> constant, decay 0.5); use another workdir"),
        (["adapt.warmup_steps=~"], "schedule constant: give warmup_steps; a share of the steps would grow with them"),
        (["adapt.decay=0.9"], "warmup_steps 2 and a decay of 7 steps must be at most steps 8"),
        (["adapt.depth_schedule=[[1, 1.0]]"], "schedule constant: the shares of depth_schedule would grow with steps"),
    ],
)
def test_what_cannot_go_on_is_refused(short, overrides, message):
    assert message in refused("run", short, *of(short), *overrides)
