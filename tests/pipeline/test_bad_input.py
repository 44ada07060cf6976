"""A user's mistake gets exit code 2 and one line that names it; nothing is lost."""

import os
import shutil
import subprocess

import pytest

from ds_minimodel.common.files import lock, note_holder
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step
from tests.helpers.commands import refused

from ..forks import done, run
from .conftest import copy_of, make_world

pytestmark = pytest.mark.slow(first=True)


@pytest.fixture
def recipe(tmp_path):
    return make_world(tmp_path)


def test_a_refusal_leaves_nothing(recipe, tmp_path):
    run_step(STEPS["corpus"], load_recipe(recipe))
    before = sorted(tmp_path.rglob("*"))
    refused(f"run {recipe} tokenizer.vocab_size=5000")
    refused(f"tokenizer {recipe} tokenizer.vocab_size=8")
    assert sorted(tmp_path.rglob("*")) == before


def test_text_in_another_language_is_said(recipe, tmp_path, capsys):
    pytest.importorskip("py3langid")
    text = "Mała łódź opuściła port, a starzy ludzie niosą swoje sieci do domu przed nocą."
    (tmp_path / "pl.txt").write_text(f"{text}\n\n" * 9)
    run_step(STEPS["corpus"], load_recipe(recipe, [f"data.text.en={tmp_path}/pl.txt"]))
    assert "\nen: 9 of 9 pages look like pl; is it text in en?\n" in capsys.readouterr().err


def test_mistakes_in_the_tasks_are_found_before_any_training(recipe, tmp_path):
    (tmp_path / "qa.xx.json").write_text("{}")
    assert "qa.xx.json" in refused(f"run {recipe}")
    assert not (tmp_path / "run/tokenizer").exists()


def test_two_runs_in_one_workdir(world, tmp_path):
    recipe = copy_of(world, tmp_path)
    path = recipe.parent / "run/.lock"
    with lock(path):
        note_holder(path, "adapt/minijoint/xx")
        here = f"process {os.getpid()} on {os.uname().nodename}"
        assert f"another run is at work here ({here}, at adapt/minijoint/xx); wait" in refused(
            f"pretrain {recipe}"
        )


def test_rebuild_with_wrong_tasks_moves_nothing(world, tmp_path):
    recipe = copy_of(world, tmp_path)
    workdir = recipe.parent / "run"
    before = sorted(workdir.rglob("*"))
    line = refused(
        f"finetune {recipe} --rebuild", "finetune.tasks.topic.columns={text: txet, label: label}"
    )
    assert "txet" in line
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.long
def test_a_full_disk(world, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        recipe = make_world(tmp_path)
        arguments = (recipe, f"workdir={disk}/run", "systems=[bl_base]")
        filler = disk / "filler"
        for part in ("corpus", "tokenizer", "tokens"):
            shutil.copytree(world.parent / "run" / part, disk / "run" / part)
        for left in (12_288, 150_000):  # too little for TensorBoard's events, for a checkpoint
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - left))
            code, _, err = run("pretrain", *arguments)
            assert code == 2
            assert "No space left" in err
            assert "Traceback" not in err
            filler.unlink()
            shutil.rmtree(disk / "run/pretrain", ignore_errors=True)
        done("pretrain", *arguments)
    finally:
        subprocess.run(["umount", disk], check=True)
