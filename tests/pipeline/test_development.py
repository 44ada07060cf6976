"""Scores on a development file while a task is finetuned, and the weights of the best one."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from ..forks import run, start
from .conftest import copy_of, make_world, refused, run_two_ranks, stop_when

RUN = ("systems=[minijoint]", "finetune.seeds=1", "finetune.epochs=4")
MODELS = {"topic": (8, 32), "qa": (2, 8)}  # updates of an epoch and of all
UNEVEN = ("finetune.tasks.topic.lr=2e-2", "finetune.tasks.qa.lr=1e-2")  # at which the last epoch is not the best


def dev_files(folder):
    """Overrides that name the source's test files as development files, too."""
    return [
        f"finetune.tasks.{name}.dev={folder}/{file}"
        for name, file in (("topic", "topic.en.jsonl"), ("qa", "qa.en.json"))
    ]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Recipe of a run to the report that keeps the best weights."""
    recipe = make_world(tmp_path_factory.mktemp("development"))
    code, _, err = run("run", recipe, *RUN, *UNEVEN, *dev_files(recipe.parent), "finetune.keep=best")
    assert code == 0, err
    return recipe


def before_finetuning(kept, tmp_path):
    """A copy of the run without what it has finetuned and scored."""
    recipe = copy_of(kept, tmp_path)
    for folder in ("finetune", "evaluate"):
        shutil.rmtree(recipe.parent / "run" / folder)
    return recipe, [*RUN, *UNEVEN, *dev_files(recipe.parent)]


def job(recipe, task):
    return recipe.parent / "run/finetune/minijoint" / task / "seed-3"


def lines(recipe, task):
    return [json.loads(line) for line in (job(recipe, task) / "run/metrics.jsonl").read_text().splitlines()]


def scores(recipe, task):
    """{step: score} on the development file."""
    return {line["step"]: line["dev/score"] for line in lines(recipe, task) if "dev/score" in line}


def best_of(recipe, task):
    found = scores(recipe, task)
    return max(found, key=lambda step: (found[step], -step))


def facts(recipe, task):
    return json.loads((job(recipe, task) / "model/manifest.json").read_text())


def weights(recipe, task):
    return load_file(job(recipe, task) / "model/model.safetensors")


@pytest.mark.parametrize("task", MODELS)
def test_the_model_is_that_of_the_best_epoch(kept, task):
    epoch, steps = MODELS[task]
    found = scores(kept, task)
    assert list(found) == list(range(epoch, steps + 1, epoch))
    best = best_of(kept, task)
    assert best < steps and facts(kept, task)["steps"] == best
    scored = kept.parent / f"run/evaluate/minijoint/en/{task}/seed-3/scores.json"
    assert json.loads(scored.read_text())[0]["score"] == found[best], "the same file as a test"
    assert not (job(kept, task) / "run/checkpoints").exists()


def test_scoring_changes_nothing(kept, tmp_path):
    """And the last weights are kept by default."""
    recipe, _ = before_finetuning(kept, tmp_path)
    code, _, err = run("run", recipe, *RUN, *UNEVEN)
    assert code == 0, err
    for task, (_, steps) in MODELS.items():
        assert [line["loss"] for line in lines(recipe, task)] == [line["loss"] for line in lines(kept, task)]
        assert facts(recipe, task)["steps"] == steps and not scores(recipe, task)


def test_a_killed_finetuning_goes_on_to_the_same_best(kept, tmp_path):
    recipe, overrides = before_finetuning(kept, tmp_path)
    command = "finetune", recipe, *overrides, "finetune.keep=best"
    checkpoints = job(recipe, "topic") / "run/checkpoints"
    stop_when(
        start(*command),
        lambda: (checkpoints / "best.safetensors").exists() and len([*checkpoints.glob("step-*[0-9]")]) > 1,
    )
    assert run(*command)[0] == 0
    for task in MODELS:
        assert scores(recipe, task) == scores(kept, task) and facts(recipe, task) == facts(kept, task)
        assert not (job(recipe, task) / "run/checkpoints").exists()


@pytest.mark.parametrize("settings", ["engine.tensor_parallel=2", "engine.zero_stage=3"], ids=["split", "stage 3"])
def test_two_ranks_keep_the_same(kept, tmp_path, settings):
    recipe, overrides = before_finetuning(kept, tmp_path)
    run_two_ranks(recipe, *overrides, "finetune.keep=best", settings)
    for task in MODELS:
        assert scores(recipe, task) == pytest.approx(scores(kept, task))
        assert facts(recipe, task)["steps"] == best_of(kept, task)
        found, expected = weights(recipe, task), weights(kept, task)
        assert all(torch.allclose(found[name], tensor, atol=1e-3) for name, tensor in expected.items())


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["finetune.keep=best"], "keep best: the task topic has no development file; name one, tasks.topic.dev"),
        (["finetune.tasks.qa.dev=none.json"], "none.json: no such file"),
        (["finetune.tasks.topic.dev={folder}/bad.jsonl"], "bad.jsonl:1: label 'moon' is not one of the task's"),
    ],
    ids=["best of nothing", "no file", "another label"],
)
def test_what_cannot_be_scored_is_refused_ahead(tmp_path, overrides, message):
    recipe = make_world(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": "a", "label": "moon"}\n')
    assert message in refused("run", recipe, *(text.format(folder=tmp_path) for text in overrides))
    assert not (tmp_path / "run").exists()
