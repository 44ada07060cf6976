"""Checkpoints are complete or absent: kills in the middle of a save, damage, other settings,
retention.
"""

import logging
import os
import pickle
import re
import resource
import shutil
import signal
import time

import pytest
import torch
from ranks import KILLED, PLACES
from synthetic import crash, resume, run_config, same, train

from ds_minimodel.common.files import read_json, sha256_of_file, sha256_of_json, write_json
from tests.helpers.refusals import refuses

from ..forks import Fork

pytestmark = pytest.mark.slow

EACH_STEP = {"checkpoint_every": 1, "keep_last": 3}


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "a bit flipped": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
    "a fact changed": lambda content: content.replace(b'"test"', b'"tesu"'),
}


def damage(file, how):
    """Damage a file of a checkpoint, or the largest of a folder's; the file."""
    if file.is_dir():
        file = max(file.glob("*.pt"), key=lambda path: path.stat().st_size)
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    return file


@pytest.mark.parametrize(
    "name, how",
    [
        (".", "cut"),
        (".", "a bit flipped"),
        (".", None),
        ("manifest.json", "cut"),
        ("manifest.json", "a fact changed"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_passed_over(
    world, uninterrupted, tmp_path, caplog, name, how
):
    run = run_config(zero_stage=1, **EACH_STEP)
    crash(world, tmp_path, run)
    newest = tmp_path / "checkpoints/step-00000004"
    if how:
        file = damage(newest / name, how)
    else:
        file = min(newest.glob("*.pt"))
        file.unlink()
    with caplog.at_level(logging.WARNING):
        weights = resume(world, tmp_path, run)
    (message,) = [
        record.getMessage() for record in caplog.records if "damaged" in record.getMessage()
    ]
    assert str(file) in message
    assert "\n" not in message
    assert same(weights, uninterrupted(run)[0])


@pytest.mark.parametrize(
    "is_gone", [False, True], ids=["damaged", "the folder that latest names is gone"]
)
def test_where_none_is_left_nothing_starts_again_by_itself(world, tmp_path, is_gone):
    run = run_config(zero_stage=1, checkpoint_every=2, keep_last=9)
    crash(world, tmp_path, run)
    checkpoints = tmp_path / "checkpoints"
    first = str(damage(checkpoints / "step-00000002", "cut"))
    second = str(damage(checkpoints / "step-00000004", "a bit flipped"))
    if is_gone:
        shutil.rmtree(checkpoints / "step-00000004")
        second = "step-00000004: missing"
    before = names(tmp_path)
    with refuses("no checkpoint is left undamaged.*delete .*checkpoints to") as refused:
        train(world, tmp_path, run)
    message = str(refused.value)
    assert first in message
    assert second in message
    assert "\n" not in message
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"precision": "bf16"}, "precision: fp32, here bf16"),
        ({"job": "of another recipe"}, "job: test, here of another recipe"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(world, tmp_path, changes, message):
    crash(world, tmp_path, run_config(zero_stage=1, **EACH_STEP))
    before = names(tmp_path)
    job = changes.pop("job", "test")
    with refuses(f"a checkpoint of another run .{message}.; use another"):
        train(world, tmp_path, run_config(**{"zero_stage": 1, **EACH_STEP, **changes}), job=job)
    assert names(tmp_path) == before


def test_the_step_before_the_fall_of_the_rate_stays_however_few_are_kept(world, tmp_path):
    train(world, tmp_path, run_config(steps=8, decay_steps=4, checkpoint_every=1, keep_last=1))
    assert names(tmp_path) == ["latest", "step-00000004", "step-00000007"]


def test_only_known_classes_are_unpickled(world, tmp_path):
    """A file with the right hash that would run code when unpickled."""
    run = run_config(zero_stage=0, **EACH_STEP)
    crash(world, tmp_path, run)
    folder = tmp_path / "checkpoints/step-00000004"
    evil = type("Evil", (), {"__reduce__": lambda _: (os.mkdir, (str(tmp_path / "ran"),))})()
    torch.save({"module": evil}, folder / "mp_rank_00_model_states.pt")
    manifest = read_json(folder / "manifest.json")
    del manifest["manifest_sha256"]
    manifest["files"]["mp_rank_00_model_states.pt"] = {
        "bytes": (folder / "mp_rank_00_model_states.pt").stat().st_size,
        "sha256": sha256_of_file(folder / "mp_rank_00_model_states.pt"),
    }
    write_json(folder / "manifest.json", {**manifest, "manifest_sha256": sha256_of_json(manifest)})
    with pytest.raises(pickle.UnpicklingError):
        train(world, tmp_path, run)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def small_disk():
    """small_disk(): from now on no file may grow beyond 20,000 bytes, to the end of the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_full_disk_in_the_background_is_one_line(
    world, uninterrupted, tmp_path, small_disk, is_stopped
):
    """Said at the next step or at a stop; and the former checkpoint stays good."""
    run = run_config(zero_stage=1, checkpoint_every=2)
    latest = tmp_path / "checkpoints/latest"

    def fill_disk(_step, _weights):
        deadline = time.monotonic() + 60
        while not latest.exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # the former one is written in the background, too
        small_disk()
        if is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)

    with refuses("checkpoints: cannot write: .*that was complete is changed"):
        train(world, tmp_path, run, snapshot_steps=(4,), on_snapshot=fill_disk)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert latest.read_text() == "step-00000002"
    assert [name for name in names(tmp_path) if re.fullmatch(r"step-\d+", name)] == [
        "step-00000002"
    ]
    assert same(resume(world, tmp_path, run), uninterrupted(run)[0])


def test_a_state_that_is_not_finite_is_not_saved_even_where_its_loss_was(world, tmp_path):
    """The loss of a step is computed before its update, which is what makes the weights infinite
    here.

    Step 2 may see its loss before the thread has seen the state of step 1.
    """
    run = run_config(checkpoint_every=1, lr=1e39, warmup_steps=0)
    with refuses("state is not finite after step 1 and is not saved|loss is not finite"):
        train(world, tmp_path, run)
    assert not list((tmp_path / "checkpoints").glob("step-*[0-9]"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of runs that were killed, one for each of PLACES."""
    folders = {place: tmp_path_factory.mktemp(place) for place in PLACES}
    processes = [
        Fork("ranks:killed_in_second_save", folder, place) for place, folder in folders.items()
    ]
    for process in processes:
        assert process.wait() == -signal.SIGKILL
    return folders


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_in_a_save_leaves_the_former_good(world, uninterrupted, killed, place):
    complete = ["step-00000001"]
    if place == "pointing":
        complete.append("step-00000002")
    assert [name for name in names(killed[place]) if re.fullmatch(r"step-\d+", name)] == complete
    assert (killed[place] / "checkpoints/latest").read_text() == "step-00000001"
    assert same(resume(world, killed[place], KILLED), uninterrupted(KILLED)[0])
    assert not any("partial" in name for name in names(killed[place]))
