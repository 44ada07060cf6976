"""Scores on a development file while a task is finetuned."""

import shutil

import pytest

from tests.helpers.commands import refused
from tests.helpers.files import read_json, read_json_lines

from ..forks import done
from .conftest import copy_of, make_world, run_two_ranks

pytestmark = pytest.mark.slow

RUN = ("systems=[minijoint]", "finetune.seeds=1", "finetune.epochs=4")
MODELS = {"topic": (8, 32), "qa": (2, 8)}  # updates of an epoch and of all
UNEVEN = ("finetune.tasks.topic.lr=2e-2", "finetune.tasks.qa.lr=1e-2")


def dev_files(folder):
    """Overrides that name the source's test files as development files, too."""
    return [
        f"finetune.tasks.{name}.dev={folder}/{file}"
        for name, file in (("topic", "topic.en.jsonl"), ("qa", "qa.en.json"))
    ]


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Recipe of a run to the report."""
    recipe = make_world(tmp_path_factory.mktemp("development"))
    done(f"run {recipe}", *RUN, *UNEVEN, *dev_files(recipe.parent))
    return recipe


def before_finetuning(scored, tmp_path):
    """A copy of the run without what it has finetuned and scored."""
    recipe = copy_of(scored, tmp_path)
    for folder in ("finetune", "evaluate"):
        shutil.rmtree(recipe.parent / "run" / folder)
    return recipe, [*RUN, *UNEVEN, *dev_files(recipe.parent)]


def job(recipe, task):
    return recipe.parent / "run/finetune/minijoint" / task / "seed-3"


def lines(recipe, task):
    return read_json_lines(job(recipe, task) / "run/metrics.jsonl")


def scores(recipe, task):
    """{step: score} on the development file."""
    return {line["step"]: line["dev/score"] for line in lines(recipe, task) if "dev/score" in line}


def facts(recipe, task):
    return read_json(job(recipe, task) / "model/manifest.json")


@pytest.mark.parametrize("task", MODELS)
def test_every_epoch_is_scored(scored, task):
    epoch, steps = MODELS[task]
    found = scores(scored, task)
    assert list(found) == list(range(epoch, steps + 1, epoch))
    assert facts(scored, task)["steps"] == steps
    test = scored.parent / f"run/evaluate/minijoint/en/{task}/seed-3/scores.json"
    assert read_json(test)[0]["score"] == found[steps], "the same file as a test"
    assert not (job(scored, task) / "run/checkpoints").exists()


def test_scoring_changes_nothing(scored, tmp_path):
    recipe, _ = before_finetuning(scored, tmp_path)
    done(f"run {recipe}", *RUN, *UNEVEN)
    for task in MODELS:
        assert [line["loss"] for line in lines(recipe, task)] == [
            line["loss"] for line in lines(scored, task)
        ]
        assert facts(recipe, task) == facts(scored, task)
        assert not scores(recipe, task)


@pytest.mark.parametrize(
    "settings", ["engine.tensor_parallel=2", "engine.zero_stage=3"], ids=["split", "stage 3"]
)
@pytest.mark.long
def test_two_ranks_score_the_same(scored, tmp_path, settings):
    recipe, overrides = before_finetuning(scored, tmp_path)
    run_two_ranks(recipe, *overrides, settings)
    for task in MODELS:
        assert scores(recipe, task) == pytest.approx(scores(scored, task))


def test_what_cannot_be_scored_is_refused_ahead(tmp_path):
    recipe = make_world(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": "a", "label": "moon"}\n')
    line = refused(f"run {recipe} finetune.tasks.topic.dev={tmp_path}/bad.jsonl")
    assert "bad.jsonl:1: label 'moon' is not one of the task's" in line
    assert not (tmp_path / "run").exists()
