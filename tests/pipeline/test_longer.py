"""Step 2 that goes on to more steps, keeps its best pack or ends early: with the bits of an undisturbed run."""

import json
import os
import shutil
import signal

import pytest
from safetensors.torch import load_file

from ds_minimodel.cli.main import main
from ds_minimodel.training.checkpoints import storage

from ..forks import Fork, run
from .conftest import copy_of, make_world, prepare, refused, run_two_ranks
from .test_held_out import assert_same_weights, held_out

ADAPT, SCORES = "adapt/minijoint/xx", "evaluate/minijoint/xx/topic/seed-3"
WORLD = ("systems=[minijoint]", "finetune.seeds=1", "data.held_out=0.1")
RUN = (*WORLD, "adapt.schedule=constant", "adapt.decay=0.25")
LONG = ("adapt.steps=32",)  # instead of 8; the rate falls in the last 8, instead of 2
# The loss is lowest after 8 steps for a while.
BEST = ("adapt.keep=best", "adapt.held_out_every=2", "adapt.lr=0.03")
EARLY = (*BEST, "adapt.patience=3")


def of(recipe):
    """Overrides of a recipe with one task."""
    text = ", ".join(f"{language}: {recipe.parent}/topic.{language}.jsonl" for language in ("en", "xx"))
    task = f"{{kind: classification, train: {recipe.parent}/topic.en.jsonl, test: {{{text}}}}}"
    return (*RUN, f"finetune.tasks={{topic: {task}}}")


def do(*arguments):
    code, out, err = run(*arguments)
    assert code == 0, err
    return out


def die_after(step, *arguments):
    """A command that is killed once the checkpoint of a step is on disk."""
    complete = storage.complete_partial

    def complete_and_die(folder, number, *rest):
        complete(folder, number, *rest)
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    storage.complete_partial = complete_and_die
    main(arguments)


def killed_after(step, *arguments):
    process = Fork("tests.pipeline.test_longer:die_after", step, *map(str, arguments))
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def of_adapt(recipe, name):
    return recipe.parent / "run" / ADAPT / name


def checkpoints(recipe):
    return sorted(path.name for path in of_adapt(recipe, "run/checkpoints").iterdir())


def pack(recipe, name="pack"):
    return load_file(of_adapt(recipe, name) / "embeddings.safetensors")


def same(weights, others):
    return all(tensor.equal(others[name]) for name, tensor in weights.items())


def kept(recipe):
    """(step that is kept, step after which training ended)."""
    facts = json.loads(of_adapt(recipe, "pack/manifest.json").read_text())
    return facts["steps"], facts["ended"]


def scores(recipe):
    return json.loads((recipe.parent / "run" / SCORES / "scores.json").read_text())


def status(recipe, *overrides):
    """{job: (state, why)} of what there is anything to say of."""
    rows = json.loads(do("status", recipe, "--json", *overrides))["jobs"]
    return {row["name"]: (row["state"], row["why"]) for row in rows if row["state"] != "complete" or row["why"]}


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Recipe of a finished run of 8 steps."""
    recipe = make_world(tmp_path_factory.mktemp("short"))
    do("run", recipe, *of(recipe))
    return recipe


def before_adapt(short, folder):
    """Recipe of a copy of it that has not been adapted."""
    recipe = copy_of(short, folder)
    for step in ("adapt", "evaluate"):
        shutil.rmtree(recipe.parent / "run" / step)
    return recipe


@pytest.fixture(scope="module")
def long(short, tmp_path_factory):
    """Recipe of a run of 32 steps that nothing disturbed."""
    recipe = before_adapt(short, tmp_path_factory.mktemp("long"))
    do("run", recipe, *of(recipe), *LONG)
    return recipe


@pytest.fixture(scope="module")
def early(short, tmp_path_factory):
    """The same of one that keeps the best and ends early."""
    recipe = before_adapt(short, tmp_path_factory.mktemp("early"))
    do("run", recipe, *of(recipe), *LONG, *EARLY)
    return recipe


def test_a_finished_run_goes_on_and_is_scored_again(short, long, tmp_path):
    recipe = copy_of(short, tmp_path)
    assert checkpoints(recipe) == ["latest", "step-00000006"]
    command = (*of(recipe), *LONG)
    assert status(recipe, *command) == {ADAPT: ("pending", "goes on: adapt.steps: 8 -> 32")}
    killed_after(26, "adapt", recipe, *command)
    assert {"step-00000024", "step-00000026"} <= {*checkpoints(recipe)}
    do("run", recipe, *command, "--rebuild")
    assert status(recipe, *command) == {} and checkpoints(recipe) == ["latest", "step-00000024"]
    assert_same_weights(recipe.parent / "run", long.parent / "run")
    assert scores(recipe) == scores(long)
    assert not list((recipe.parent / "run").rglob("*.old-*")), "what goes on is not stale"


def test_the_best_is_kept_and_patience_ends_the_training(early):
    bits = {
        step: values["held_out/body_bits_per_byte"] for step, values in held_out(early.parent / "run", ADAPT).items()
    }
    assert list(bits) == list(range(0, 15, 2)) and min(bits, key=bits.__getitem__) == 8
    assert kept(early) == (8, 14)
    assert same(pack(early), pack(early, "snapshots/step-00000008"))
    assert not of_adapt(early, "snapshots/step-00000016").exists()
    said = "kept step 8, ended by patience at 14"
    assert status(early, *of(early), *LONG, *EARLY) == {ADAPT: ("complete", said)}
    page = (early.parent / "run/report/report.md").read_text()
    assert f"{bits[8]:.3f} {said}" in page and "at most 32 updates" in page


def test_the_best_stands_for_the_steps_after_it(early):
    rows = scores(early)
    assert [row["step"] for row in rows] == list(range(0, 33, 4))
    costs = [row["eflops"] for row in rows]
    assert costs[0] < costs[1] < costs[2] and costs[2:] == [costs[2]] * 7
    assert len({row["score"] for row in rows[2:]}) == 1


def test_a_killed_run_keeps_the_same_and_ends_with_the_same_step(short, early, tmp_path):
    recipe = before_adapt(short, tmp_path)
    command = ("adapt", recipe, *of(recipe), *LONG, *EARLY)
    killed_after(12, *command)
    do(*command)
    assert kept(recipe) == (8, 14)
    assert_same_weights(recipe.parent / "run/adapt", early.parent / "run/adapt")


def test_a_run_that_goes_on_forgets_the_best_of_its_fall(short, early, tmp_path):
    """And one that patience ended before it ends there again."""
    recipe = before_adapt(short, tmp_path)
    command = ("adapt", recipe, *of(recipe), *EARLY)
    do(*command)
    assert kept(recipe) == (8, 8) and not same(pack(recipe), pack(early)), "the rate has fallen"
    assert checkpoints(recipe) == ["best-of-trunk.safetensors", "latest", "step-00000006"]
    for steps in (32, 40):
        do(*command, f"adapt.steps={steps}")
        assert kept(recipe) == (8, 14)
        assert_same_weights(recipe.parent / "run/adapt", early.parent / "run/adapt")
        assert checkpoints(recipe) == ["best-of-trunk.safetensors", "latest", "step-00000014"]


def test_a_rate_that_falls_at_once_keeps_its_best(short, tmp_path):
    recipe = before_adapt(short, tmp_path)
    command = ("adapt", recipe, *of(recipe), *BEST, "adapt.schedule=linear", "adapt.held_out_every=1", "adapt.lr=0.1")
    do(*command)
    found = held_out(recipe.parent / "run", ADAPT)
    best = min(found, key=lambda step: found[step]["held_out/body_bits_per_byte"])
    assert kept(recipe) == (best, 8) and best < 8
    assert not of_adapt(recipe, "run/checkpoints").exists()


@pytest.mark.parametrize(
    "settings", [(), ("engine.tensor_parallel=2",), ("engine.zero_stage=3",)], ids=["stage 1", "split", "stage 3"]
)
def test_two_ranks_go_on_to_the_bits_of_an_undisturbed_run(tmp_path, settings):
    overrides = (*RUN, "finetune.tasks={}", *EARLY, *settings)
    recipes = []
    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
        recipes.append(prepare(make_world(tmp_path / name), *overrides))
    run_two_ranks(recipes[0], *overrides)
    for recipe in recipes:
        run_two_ranks(recipe, *overrides, *LONG)
    assert_same_weights(recipes[0].parent / "run", recipes[1].parent / "run")
    assert kept(recipes[0]) == kept(recipes[1]) == (8, 14)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["adapt.steps=7"], "(adapt.steps: 8 -> 7); they may grow where adapt.schedule is constant; use another"),
        (["adapt.steps=16", "adapt.schedule=linear"], "(adapt.steps: 8 -> 16); they may grow where adapt.schedule is"),
        (["adapt.steps=16", "adapt.lr=1e-3"], "(adapt.lr: 0.002 -> 0.001); use another workdir"),
        (["adapt.decay=0.5"], "(schedule: constant, decay 0.25 -> constant, decay 0.5); use another workdir"),
        (BEST[:2], "(keep: None -> {'every': 2, 'patience': None}); use another workdir"),
        (["adapt.warmup_steps=~"], "schedule constant: give warmup_steps; a share of the steps would grow with them"),
        (["adapt.decay=0.9"], "warmup_steps 2 and a decay of 7 steps must be at most steps 8"),
        (["adapt.patience=2"], "patience: with keep last nothing is the best; give keep best"),
        (["adapt.keep=best"], "keep best: with schedule constant give held_out_every; a share of the steps would grow"),
        (["adapt.keep=best", "adapt.held_out_every=2", "data.held_out=0"], "keep best: with data.held_out 0 there is"),
    ],
)
def test_what_cannot_go_on_or_be_the_best_is_refused(short, overrides, message):
    assert message in refused("run", short, *of(short), *overrides)


def test_a_text_too_short_to_find_the_best_on_is_refused(tmp_path):
    recipe = make_world(tmp_path)
    overrides = (*RUN, *EARLY, "finetune.tasks={}", "data.held_out=1e-9")
    do("pretrain", prepare(recipe, *overrides), *overrides)
    line = refused("adapt", recipe, *overrides)
    assert "adapt.keep best: no document of xx is held out; give more text or data.held_out" in line
    assert not (tmp_path / "run/adapt").exists()
