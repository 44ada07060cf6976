"""What is used is what was made: every kind of file of a finished run, damaged, swapped or replaced, is refused in one
line that names it, and nothing on disk is changed."""

import contextlib
import json
import os
import shutil

import pytest

from ..forks import run
from .conftest import copy_of, refused

BODY, PACK = "pretrain/minijoint/body", "adapt/minijoint/xx/pack"
MODEL, SCORES = "finetune/minijoint/topic/seed-3/model", "evaluate/minijoint/xx/topic/seed-3"


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    """Recipe of a copy of the finished world; each test puts back what it damages."""
    recipe = copy_of(world, tmp_path_factory.mktemp("integrity"))
    return recipe


def files_of(recipe):
    """All that a refused command must leave as it is."""
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime_ns, path.lstat().st_ino)
        for path in recipe.parent.rglob("*")
        if path.name != ".lock" and not path.is_dir()
    }


def refused_naming(recipe, name, *arguments):
    """The one line of a refused command, which names the file and leaves the disk as it was."""
    before = files_of(recipe)
    line = refused(*arguments)
    assert str(name) in line and len(line) < 600, line
    assert files_of(recipe) == before
    return line


@contextlib.contextmanager
def set_aside(*paths):
    """Take files and folders away, and put them back at the end in place of whatever is there then."""
    kept = [(path, path.with_name(f"{path.name}.kept")) for path in paths if os.path.lexists(path)]
    for path, aside in kept:
        path.rename(aside)
    try:
        yield
    finally:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path, aside in kept:
            aside.rename(path)


@contextlib.contextmanager
def replaced(path, other):
    """`path` with the content of `other`, a file or folder."""
    copy = path.with_name("copy")
    shutil.copytree(other, copy) if other.is_dir() else shutil.copy(other, copy)
    with set_aside(path):
        copy.rename(path)
        yield


@contextlib.contextmanager
def written(path, content):
    with set_aside(path):
        path.write_bytes(content)
        yield


def flipped(content, at=None):
    at = len(content) // 2 if at is None else at
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def pending(workdir, *folders):
    """What makes the jobs of these folders undone: they and their records are taken away."""
    paths = [workdir / folder for folder in folders]
    return set_aside(*paths, *(path.with_name(f"{path.name}.job.json") for path in paths))


def test_a_pack_replaced_by_its_own_first_snapshot(finished):
    workdir = finished.parent / "run"
    with replaced(workdir / PACK, workdir / "adapt/minijoint/xx/snapshots/step-00000000"):
        for command in ("run", "adapt", "evaluate", "report"):
            line = refused_naming(finished, workdir / PACK, command, finished)
            assert "another artifact than the job made" in line and "delete" in line
        with pending(workdir, SCORES):
            refused_naming(finished, workdir / PACK, "evaluate", finished)


@pytest.mark.parametrize("name", [f"{SCORES}/scores.json", "evaluate/baselines/xx/qa/baselines.json"])
def test_a_digit_of_a_score(finished, name):
    path = finished.parent / "run" / name
    content = path.read_bytes()
    digit = content.index(b".", content.index(b'"score": ')) + 1
    changed = content[:digit] + (b"1" if content[digit : digit + 1] != b"1" else b"2") + content[digit + 1 :]
    with written(path, changed):
        assert "damaged" in refused_naming(finished, path, "report", finished)


@pytest.mark.parametrize("name", ["xx/00000.bin", "xx.*.blocks"])
def test_a_flipped_byte_of_what_a_step_trains_on(finished, name):
    """Found when the step begins: its record and settings are all that it writes."""
    workdir = finished.parent / "run"
    (path,) = (workdir / "tokens").glob(name)
    with written(path, flipped(path.read_bytes())), pending(workdir, "adapt/bl_base/xx"):
        before = files_of(finished)
        line = refused("adapt", finished, "systems=[bl_base]", "adapt.depth_schedule=[]")
        assert str(path) in line and "damaged" in line
        after = files_of(finished)
        assert {file: after[file] for file in before} == before
        assert all("adapt/bl_base/xx" in str(file) for file in after.keys() - before.keys())


# Every kind of file, damaged in every way. (file, jobs to be done anew, command that reads it)

READ_BY = [
    ("tokenizer/xx/tokenizer.model", ["tokens/xx"], "prepare"),
    ("tokens/xx/manifest.json", [], "prepare"),
    ("tokens/xx.job.json", [], "prepare"),
    ("pretrain/minijoint.job.json", [], "pretrain"),
    ("pretrain/bl_base/body/config.json", ["build-mini/minipost"], "build-mini"),
    ("pretrain/bl_base/pack/embeddings.safetensors", ["build-mini/minipost"], "build-mini"),
    ("build-mini/minipost/mini/manifest.json", [], "adapt"),
    (f"{PACK}/manifest.json", [], "evaluate"),
    (f"{PACK}/embeddings.safetensors", [SCORES], "evaluate"),
    ("adapt/minijoint/xx/snapshots/step-00000004/embeddings.safetensors", [SCORES], "evaluate"),
    (f"{MODEL}/model.safetensors", [SCORES], "evaluate"),
    (f"{MODEL}/config.json", [SCORES], "evaluate"),
    (f"{SCORES}/scores.json", [], "report"),
    (f"{SCORES}.job.json", [], "report"),
    ("evaluate/baselines/xx/topic/baselines.json", [], "report"),
]
DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "a byte flipped": flipped,
    "a list": lambda _: b"[1, 2]\n",
    "wrong types": lambda _: b'{"files": 1, "inputs": 1, "complete": 1, "kind": 1, "architecture": 1, "step": "x"}\n',
    "nested deep": lambda _: b"[" * 100_000,
    "not UTF-8": lambda _: b'{"files": "\xff\xfe"}\n',
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name, undone, command", READ_BY, ids=[f"{name}-{command}" for name, _, command in READ_BY])
def test_a_damaged_file(finished, name, undone, command, damage):
    workdir = finished.parent / "run"
    path = workdir / name
    with written(path, DAMAGES[damage](path.read_bytes())), pending(workdir, *undone):
        refused_after_begin(finished, path, command, undone)


def refused_after_begin(recipe, path, command, undone):
    """As refused_naming; what jobs leave that were begun before the damage was met goes with the test."""
    workdir, before = recipe.parent / "run", files_of(recipe)
    line = refused(command, recipe)
    assert str(path) in line or str(path.parent) in line, line
    after = files_of(recipe)
    assert {file: after.get(file) for file in before} == before
    own = [str(workdir / folder) for folder in undone]
    assert all(str(file).startswith(tuple(own)) for file in after.keys() - before.keys()) or not own
    assert own or after == before


@pytest.mark.parametrize("name, undone, command", READ_BY[::3])
def test_a_folder_in_the_place_of_a_file(finished, name, undone, command):
    workdir = finished.parent / "run"
    with set_aside(workdir / name), pending(workdir, *undone):
        (workdir / name).mkdir()
        refused_after_begin(finished, workdir / name, command, undone)


@pytest.mark.parametrize(
    "folder, command", [("tokens/xx", "prepare"), (PACK, "adapt"), ("pretrain/minijoint/run", "report")]
)
def test_a_file_in_the_place_of_a_folder(finished, folder, command):
    path = finished.parent / "run" / folder
    with written(path, b"a file"):
        refused_naming(finished, path, command, finished)


SWAPS = [
    ("tokens/en", "tokens/xx", "prepare"),
    ("pretrain/bl_base/pack", "pretrain/minijoint/pack", "finetune"),
    ("adapt/bl_base/xx/pack", PACK, "evaluate"),
    ("adapt/minijoint/xx/snapshots/step-00000000", "adapt/minijoint/xx/snapshots/step-00000004", "adapt"),
    ("finetune/minijoint/topic/seed-3/model", "finetune/minijoint/topic/seed-4/model", "evaluate"),
    ("evaluate/minijoint/xx/topic/seed-4", SCORES, "report"),
    ("evaluate/baselines/xx/qa", "evaluate/baselines/xx/topic", "report"),
    ("build-mini/minipost/mini", "pretrain/bl_base/body", "adapt"),
    ("adapt/bl_base/xx.job.json", "adapt/minijoint/xx.job.json", "adapt"),
]


@pytest.mark.parametrize("source, target, command", SWAPS)
def test_what_another_job_made(finished, source, target, command):
    workdir = finished.parent / "run"
    with replaced(workdir / target, workdir / source):
        line = refused(command, finished)
        assert str(workdir / target).removesuffix(".job.json") in line, line


def test_nothing_is_done_before_what_is_refused_later(finished):
    """A run that must end at a stale job does not work on those before it."""
    finetune = finished.parent / "run/finetune/bl_base"
    stale = finetune / "qa/seed-4.job.json"
    with replaced(stale, finetune / "topic/seed-4.job.json"), pending(finetune, "topic/seed-3"):
        refused_naming(finished, finetune / "qa/seed-4", "run", finished)


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../x", ""])
def test_names_that_leave_the_folder(finished, name):
    path = finished.parent / "run" / PACK / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0" * 64}
    with written(path, json.dumps(manifest).encode()):
        assert "no name below the folder" in refused_naming(finished, path, "adapt", finished)


def test_what_is_gone_is_made_again(world, tmp_path):
    """Deleting an artifact is no damage: its job is done again, to the same bytes."""
    recipe = copy_of(world, tmp_path)
    for folder in ("tokens/xx", SCORES):
        shutil.rmtree(recipe.parent / "run" / folder)
    code, _, err = run("run", recipe)
    assert code == 0, err
    for name in ("tokens/xx/00000.bin", "tokens/xx/manifest.json", f"{SCORES}/scores.json"):
        assert (recipe.parent / "run" / name).read_bytes() == (world.parent / "run" / name).read_bytes()
