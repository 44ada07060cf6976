"""The whole pipeline through the command line: what it leaves, and that a disturbed run leaves the
same.

The undisturbed one ran in processes of their own, those that are disturbed in forks.
"""

import hashlib
import json
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ds_minimodel.artifacts.models import load_model
from tests.helpers.files import read_json

from ..forks import done, start
from .conftest import copy_of, make_world, stop_when

pytestmark = pytest.mark.slow

STEPS = (
    "corpus",
    "tokenizer",
    "prepare",
    "pretrain",
    "build-mini",
    "adapt",
    "finetune",
    "evaluate",
)
GOLDEN = read_json(Path(__file__).parent / "golden_losses.json")
RESULTS = ("*.safetensors", "*.model", "*.bin", "*.idx", "config.json", "scores.json")


def results(workdir):
    """{relative path: SHA-256} of all that a run is for, but for the report on it."""
    return {
        str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in RESULTS
        for path in workdir.rglob(pattern)
        if "report" not in path.parts
    }


def test_scores_of_every_system_task_language_and_seed(world):
    rows = read_json(world.parent / "run/report/scores.json")
    assert {(row["system"], row["task"]) for row in rows} == {
        (system, task)
        for system in ("bl_base", "bl_small", "minijoint", "minipost")
        for task in ("topic", "qa")
    }
    for row in rows:
        assert row["language"] == "xx"
        assert row["seed"] in (3, 4)
        assert 0 <= row["score"] <= 100
    one = [
        row
        for row in rows
        if (row["system"], row["task"], row["seed"]) == ("minijoint", "topic", 3)
    ]
    assert [row["step"] for row in one] == [0, 4, 8]
    assert [row["eflops"] for row in one] == pytest.approx(
        [0, one[2]["eflops"] / 2, one[2]["eflops"]]
    )
    page = (world.parent / "run/report/report.md").read_text()
    assert all(text in page for text in ("MiniPost", "unadapted", "**Results of**: 20"))


def test_build_mini_changes_the_new_layers_only(world):
    workdir = world.parent / "run"
    body = load_model(workdir / "pretrain/bl_base/model")[0].tensors
    mini = load_file(workdir / "build-mini/minipost/mini/model.safetensors")
    for name, tensor in mini.items():
        if not name.startswith("layers.1."):
            assert torch.equal(tensor, body[name.replace("heads.2.", "heads.3.")]), name


def test_a_second_run_does_nothing(world, tmp_path):
    workdir = (recipe := copy_of(world, tmp_path)).parent / "run"
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.safetensors")}
    (workdir / "adapt/bl_base/xx/run").rename(tmp_path / "run")  # the report does without
    assert "pretrain/bl_base: complete" in done(f"run {recipe}")
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.safetensors")} == before


def test_killed_in_every_step_ends_with_the_same_files(world, tmp_path):
    recipe = make_world(tmp_path)
    workdir = tmp_path / "run"
    systems = "systems=[minipost,minijoint]"  # all steps, heads at several depths
    for step in STEPS:

        def unfinished(step=step):
            for path in (workdir / step.replace("prepare", "tokens")).rglob("*.job.json"):
                if re.search('"complete": false', path.read_text()):
                    checkpoints = (
                        path.with_name(path.name.removesuffix(".job.json")) / "run/checkpoints"
                    )
                    return (
                        step in ("corpus", "tokenizer", "prepare", "evaluate")
                        or (checkpoints / "latest").exists()
                    )
            return False

        code, _ = stop_when(start(f"run {recipe}", systems), unfinished)
        assert code == -signal.SIGKILL
    done(f"run {recipe}", systems)
    disturbed = results(workdir)
    whole = results(world.parent / "run")
    assert disturbed == {file: whole[file] for file in disturbed}
    assert {file.split("/")[0] for file in disturbed} == {file.split("/")[0] for file in whole}
    assert len([file for file in disturbed if "minijoint" in file]) == len(
        [file for file in whole if "minijoint" in file]
    )
    assert not list(workdir.rglob("*.tmp*"))
    assert not list(workdir.rglob("*.partial"))


def test_signals_save_and_the_same_command_goes_on(world, tmp_path):
    """Stopped by SIGINT, then by SIGTERM, then left alone."""
    recipe = make_world(tmp_path)
    workdir = tmp_path / "run"
    metrics = workdir / "pretrain/bl_base/run/metrics.jsonl"
    lines = 0
    longer = ("systems=[bl_base]", "checkpoint.every=100", "pretrain.steps=200")

    def goes_on():
        return metrics.exists() and metrics.read_text().count("\n") > lines + 3

    for number, expected in ((signal.SIGINT, 1), (signal.SIGTERM, 75)):
        code, err = stop_when(start(f"run {recipe}", *longer), goes_on, number)
        assert code == expected
        assert "the same command resumes from there" in err
        assert list((workdir / "pretrain/bl_base/run/checkpoints").glob("step-*"))
        lines = metrics.read_text().count("\n")
    done(f"pretrain {recipe}", *longer)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 200


def test_every_training_run_has_its_golden_losses(world):
    """Within what another CPU's order of sums changes; on one machine the bits are the same."""
    workdir = world.parent / "run"
    found = {
        str(path.relative_to(workdir).parents[1]): [
            json.loads(line)["loss"] for line in path.read_text().splitlines()
        ]
        for path in workdir.rglob("metrics.jsonl")
    }
    assert found.keys() == GOLDEN.keys()
    for name, losses in GOLDEN.items():
        assert found[name] == pytest.approx(losses, rel=1e-4), name
