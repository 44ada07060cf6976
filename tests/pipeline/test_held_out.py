"""Held-out loss while the steps train: what is written, and that taking it changes nothing."""

import shutil

import pytest

from tests.pipeline.conftest import assert_same_weights, held_out, weights

from ..forks import done, run, start
from .conftest import make_world, read_in, run_two_ranks, stop_when

pytestmark = pytest.mark.slow

OVERRIDES = ("systems=[bl_base,minipost,minijoint]", "finetune.tasks={}", "data.held_out=0.1")
RUNS = (
    "pretrain/bl_base pretrain/minijoint build-mini/minipost adapt/bl_base/xx adapt/minipost/xx "
    "adapt/minijoint/xx"
)
# After which each is evaluated; the whole body at the snapshots 0, 4 and 8.
STEPS = {run: [0, 4, 8] if run.startswith("adapt") else [0, 8] for run in RUNS.split()}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Workdir of a run to a report."""
    recipe = make_world(tmp_path_factory.mktemp("held_out"))
    done(f"run {recipe}", *OVERRIDES)
    return recipe.parent / "run"


def test_every_run_has_held_out_losses_in_its_metrics(workdir):
    for name, steps in STEPS.items():
        scores = held_out(workdir, name)
        assert list(scores) == steps, name
        for found in scores.values():
            assert 3.5 < found["held_out/nats_per_token"] < 4.5
            of_body = {key for key in found if key.startswith("held_out/body_")}
            assert len(of_body) == (1 if name.startswith("adapt") else 0)
    heads = held_out(workdir, "pretrain/minijoint")[8]
    assert heads["held_out/nats_per_token/depth_3"] == heads["held_out/nats_per_token"]


def test_where_all_layers_are_trained_through_the_body_is_what_trains(workdir):
    for name, same in (
        ("adapt/bl_base/xx", True),
        ("adapt/minijoint/xx", False),
        ("adapt/minipost/xx", False),
    ):
        last = held_out(workdir, name)[8]
        assert (last["held_out/body_nats_per_token"] == last["held_out/nats_per_token"]) == same


def test_evaluating_more_often_changes_no_weight(workdir, tmp_path):
    shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns("adapt", "report"))
    often = "adapt.snapshot_every=1", f"workdir={tmp_path}/run"
    done(f"adapt {workdir.parent}/recipe.yaml", *OVERRIDES, *often)
    assert list(held_out(tmp_path / "run", "adapt/minipost/xx")) == [*range(9)]
    often = weights(tmp_path / "run")
    for file, tensors in weights(workdir).items():
        assert all(tensor.equal(often[file][name]) for name, tensor in tensors.items()), file


def test_a_killed_run_goes_on_to_the_same_scores(workdir, tmp_path):
    recipe = make_world(tmp_path)
    read_in(workdir.parent, tmp_path)
    for step, name in (
        ("pretrain", "pretrain/bl_base"),
        ("build-mini", "build-mini/minipost"),
        ("adapt", "adapt/minipost/xx"),
    ):
        checkpoints = tmp_path / "run" / name / "run/checkpoints"
        process = start(step, recipe, *OVERRIDES)
        stop_when(process, lambda folder=checkpoints: len([*folder.glob("step-*")]) > 1)
        assert run(step, recipe, *OVERRIDES)[0] == 0
        assert held_out(tmp_path / "run", name) == held_out(workdir, name)
    assert_same_weights(workdir, tmp_path / "run")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(
            ("systems=[minipost]", "engine.tensor_parallel=2"),
            marks=pytest.mark.long,
        ),
        ("systems=[minijoint]", "engine.zero_stage=3"),
    ],
    ids=["split", "stage 3"],
)
def test_two_ranks_find_the_same(workdir, tmp_path, settings):
    recipe = make_world(tmp_path)
    read_in(workdir.parent, tmp_path)
    found_in = run_two_ranks(recipe, *OVERRIDES, *settings)
    names = [name for name in STEPS if (found_in / name).exists()]
    assert len(names) == (3 if "minipost" in settings[0] else 2)
    for name in names:
        expected = held_out(workdir, name)
        found = held_out(found_in, name)
        assert found.keys() == expected.keys()
        for step, scores in expected.items():
            assert found[step] == pytest.approx(scores, rel=1e-3), (name, step)
