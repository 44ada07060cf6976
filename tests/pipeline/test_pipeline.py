"""The whole pipeline through the command line: what it leaves, and that a disturbed run leaves the same."""

import hashlib
import json
import re
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from .conftest import make_world, run, start, stop_when

STEPS = ("tokenizer", "prepare", "pretrain", "build-mini", "adapt", "finetune", "evaluate")
RESULTS = ("*.safetensors", "*.model", "*.bin", "*.idx", "config.json", "scores.json", "report.md")


def results(workdir):
    """{relative path: SHA-256} of all that a run is for."""
    return {str(path.relative_to(workdir)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in RESULTS for path in workdir.rglob(pattern)}


def test_scores_of_every_system_task_language_and_seed(world):
    rows = json.loads((world.parent / "run/report/scores.json").read_text())
    assert {(row["system"], row["task"]) for row in rows} == {
        (system, task) for system in ("bl_base", "bl_small", "minijoint", "minipost", "multijoint")
        for task in ("topic", "qa")}
    for row in rows:
        assert row["language"] == "xx" and row["seed"] in (3, 4) and 0 <= row["score"] <= 100
    one = [row for row in rows if (row["system"], row["task"], row["seed"]) == ("minijoint", "topic", 3)]
    assert [row["step"] for row in one] == [0, 4, 8]
    assert [row["eflops"] for row in one] == pytest.approx([0, one[2]["eflops"] / 2, one[2]["eflops"]])


def test_questions_have_exact_match_beside_f1(world):
    rows = json.loads((world.parent / "run/evaluate/minijoint/qa/scores.json").read_text())
    assert rows and all(0 <= row["exact_match"] <= row["score"] <= 100 for row in rows)


def test_report_names_systems_costs_and_references(world):
    page = (world.parent / "run/report/report.md").read_text()
    for text in ("BL_BASE", "MiniJoint", "MiniPost", "majority", "TF-IDF", "unadapted"):
        assert text in page, text
    assert (world.parent / "run/report/report.html").read_text().count("data:image/png;base64") >= 3


def test_a_report_over_a_run_and_its_copy_is_the_runs_own(world, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(world.parent / "run/report", copy / "report")       # the report folder alone is enough
    code, _, err = run("report", world, "--with", f"twin={copy}")
    assert code == 0, err
    joint, own = ((world.parent / f"run/{name}/report.md").read_text() for name in ("report-joint", "report"))
    shutil.rmtree(world.parent / "run/report-joint")        # other tests compare the run with theirs
    assert "repeats BL_BASE, BL_SMALL, MiniJoint, MiniPost, MultiJoint" in joint
    tables = [[line for line in page.splitlines() if line.startswith("|")] for page in (joint, own)]
    assert tables[0] == tables[1]


def test_a_run_without_tasks_ends_with_costs_and_losses(tmp_path):
    recipe = make_world(tmp_path)
    code, _, err = run("run", recipe, "finetune.tasks={}", "systems=[minijoint]", "adapt.depth_schedule=[]")
    assert code == 0, err
    page = (tmp_path / "run/report/report.md").read_text()
    assert "Cost of each step" in page and "Masked-language-model loss" in page and "nothing was scored" in page


def test_build_mini_changes_the_new_layers_only(world):
    workdir = world.parent / "run"
    body = load_file(workdir / "pretrain/bl_base/body/model.safetensors")
    mini = load_file(workdir / "build-mini/minipost/mini/model.safetensors")
    for name, tensor in mini.items():
        if not name.startswith("layers.1."):
            assert torch.equal(tensor, body[name.replace("heads.2.", "heads.3.")]), name


def test_adapt_keeps_the_padding_row_and_what_step_0_copied(world):
    folder = world.parent / "run/adapt/minijoint/xx"
    first = load_file(folder / "snapshots/step-00000000/embeddings.safetensors")
    last = load_file(folder / "pack/embeddings.safetensors")
    source = load_file(world.parent / "run/pretrain/minijoint/pack/embeddings.safetensors")
    assert sorted(first) == sorted(last) == ["bias", "tokens"]
    assert torch.equal(first["tokens"][0], source["tokens"][0])        # <s> is a piece of both languages
    assert not torch.equal(first["tokens"], last["tokens"]) and not torch.equal(first["bias"], last["bias"])


def test_task_models_hold_no_embeddings(world):
    for seed in (3, 4):
        path = world.parent / f"run/finetune/minijoint/topic/seed-{seed}/model/model.safetensors"
        assert not [name for name in load_file(path) if name.startswith("pack.") or ".heads." in name]


def test_a_second_run_does_nothing(world):
    workdir = world.parent / "run"
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.safetensors")}
    code, _, err = run("run", world)
    assert code == 0 and "pretrain/bl_base: complete" in err
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.safetensors")} == before


def test_killed_in_every_step_ends_with_the_same_files(world, tmp_path):
    recipe = make_world(tmp_path)
    workdir = tmp_path / "run"
    (tmp_path / "recipe.yaml").write_text(recipe.read_text())
    for step in STEPS:
        def unfinished(step=step):
            for path in (workdir / step.replace("prepare", "tokens")).rglob("*.job.json"):
                if re.search('"complete": false', path.read_text()):
                    checkpoints = path.with_name(path.name.removesuffix(".job.json")) / "run/checkpoints"
                    return step in ("tokenizer", "prepare", "evaluate") or (checkpoints / "latest").exists()
            return False

        code, _ = stop_when(start("run", recipe), unfinished)
        assert code == -signal.SIGKILL
    code, _, err = run("run", recipe)
    assert code == 0, err
    disturbed, whole = results(workdir), results(world.parent / "run")
    assert disturbed == whole
    assert not list(workdir.rglob("*.tmp*")) and not list(workdir.rglob("*.partial"))


@pytest.mark.parametrize("number, expected", [(signal.SIGINT, 1), (signal.SIGTERM, 0)])
def test_a_signal_saves_and_the_same_command_goes_on(world, tmp_path, number, expected):
    recipe, workdir = make_world(tmp_path), tmp_path / "run"
    metrics = workdir / "pretrain/bl_base/run/metrics.jsonl"
    longer = ("systems=[bl_base]", "adapt.depth_schedule=[]", "checkpoint.every=100", "pretrain.steps=500")
    code, err = stop_when(start("run", recipe, *longer),
                          lambda: metrics.exists() and metrics.read_text().count("\n") > 3, number)
    assert code == expected and "the same command goes on from there" in err
    (saved,) = (workdir / "pretrain/bl_base/run/checkpoints").glob("step-*")
    code, _, err = run("pretrain", recipe, *longer)
    assert code == 0, err
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(set(steps)) and steps[-1] == 500


def test_two_ranks_train_what_one_does(world, tmp_path):
    recipe = make_world(tmp_path)
    arguments = [recipe, "systems=[minijoint]", "adapt.depth_schedule=[]"]
    for step in ("tokenizer", "prepare"):
        assert run(step, *arguments)[0] == 0
    for step in ("pretrain", "adapt"):
        code, _, err = run(step, *arguments, "--ranks", "2", "--zero", "2")
        assert code == 0, err
    for file in ("pretrain/minijoint/body/model.safetensors", "adapt/minijoint/xx/pack/embeddings.safetensors"):
        one, two = load_file(world.parent / "run" / file), load_file(tmp_path / "run" / file)
        for name in one:
            np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), atol=2e-4, err_msg=name)
