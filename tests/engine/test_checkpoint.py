"""Checkpoints are complete or absent: kills in the middle of a save, damage, other settings, retention."""

import logging
import multiprocessing
import os
import re
import signal

import pytest
from killed import PLACES, RUN, killed_in_second_save
from synthetic import CrashingSampler, resume, run_config, same, train

from ds_minimodel.errors import UserError

EACH_STEP = {"checkpoint_every": 1, "keep_last": 3}


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def crash(world, folder, run):
    """Train four steps and fail."""
    with pytest.raises(RuntimeError, match="crash of the test"):
        train(world, folder, run, sampler=CrashingSampler)


@pytest.mark.parametrize("keep_last, kept", [(1, [4]), (2, [3, 4]), (9, [1, 2, 3, 4])])
def test_the_newest_are_kept(world, tmp_path, keep_last, kept):
    crash(world, tmp_path, run_config(checkpoint_every=1, keep_last=keep_last))
    assert names(tmp_path) == ["latest", *(f"step-{step:08}" for step in kept)]


def truncate(folder):
    file = max(folder.glob("*.pt"), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)
    return file.name


def flip_a_bit(folder):
    file = max(folder.glob("*.pt"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file.name


def delete(folder):
    file = min(folder.glob("*.pt"))
    file.unlink()
    return file.name


def delete_manifest(folder):
    (folder / "manifest.json").unlink()
    return "manifest.json"


def cut_manifest(folder):
    os.truncate(folder / "manifest.json", 40)
    return "manifest.json"


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, delete, delete_manifest, cut_manifest])
def test_a_damaged_checkpoint_is_named_and_passed_over(world, uninterrupted, tmp_path, caplog, damage):
    run = run_config(zero_stage=1, **EACH_STEP)
    crash(world, tmp_path, run)
    newest = tmp_path / "checkpoints" / "step-00000004"
    file = damage(newest)
    with caplog.at_level(logging.WARNING):
        weights = resume(world, tmp_path, run)
    (message,) = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert str(newest / file) in message and "\n" not in message
    assert same(weights, uninterrupted(run)[0])


def test_a_damaged_checkpoint_does_not_crowd_out_a_good_one(world, uninterrupted, tmp_path):
    """Step 4 is damaged, step 3 is passed on to, and the next save is of a step before 4."""
    run = run_config(checkpoint_every=1, keep_last=2)
    crash(world, tmp_path, run)
    truncate(tmp_path / "checkpoints" / "step-00000004")
    truncate(tmp_path / "checkpoints" / "step-00000003")
    crash(world, tmp_path, run_config(checkpoint_every=3, keep_last=1))
    assert names(tmp_path) == ["latest", "step-00000003"]
    assert same(resume(world, tmp_path, run), uninterrupted(run)[0])


@pytest.mark.parametrize("changes, message", [
    ({"zero_stage": 2}, "written with zero_stage 1, the run has 2"),
    ({"precision": "bf16"}, "written with precision fp32, the run has bf16")])
def test_a_checkpoint_of_other_settings_is_refused(world, tmp_path, changes, message):
    crash(world, tmp_path, run_config(zero_stage=1, **EACH_STEP))
    before = names(tmp_path)
    with pytest.raises(UserError, match=message) as refused:
        train(world, tmp_path, run_config(**{"zero_stage": 1, **EACH_STEP, **changes}))
    assert "\n" not in str(refused.value)
    assert names(tmp_path) == before


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of runs that were killed, one for each of PLACES; they share one import of DeepSpeed."""
    context = multiprocessing.get_context("forkserver")
    # DeepSpeed loads this with the first optimizer, and with it the compilers of torch: seconds of work.
    context.set_forkserver_preload(["deepspeed.runtime.zero.muon.original_muon", "torch.utils.tensorboard"])
    folders = {place: tmp_path_factory.mktemp(place) for place in PLACES}
    processes = [context.Process(target=killed_in_second_save, args=(folder, place))
                 for place, folder in folders.items()]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == -signal.SIGKILL
    return folders


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_in_a_save_leaves_the_former_good(world, uninterrupted, killed, place):
    complete = ["step-00000001"] + (["step-00000002"] if place == "pointing" else [])
    assert [name for name in names(killed[place]) if re.fullmatch(r"step-\d+", name)] == complete
    assert (killed[place] / "checkpoints" / "latest").read_text() == "step-00000001"
    assert same(resume(world, killed[place], RUN), uninterrupted(RUN)[0])
    assert not any("partial" in name for name in names(killed[place]))
