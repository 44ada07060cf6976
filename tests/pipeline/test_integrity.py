"""What is used is what was made: every kind of file of a finished run, damaged, swapped or
replaced, is refused in one line that names it, and nothing on disk is changed.
"""

import contextlib
import os
import shutil

import pytest

from tests.helpers.commands import refused

from ..forks import run
from .conftest import copy_of

pytestmark = pytest.mark.slow

BODY = "pretrain/minijoint/model"
PACK = "adapt/minijoint/xx/pack"
MODEL = "finetune/minijoint/topic/seed-3/model"
SCORES = "evaluate/minijoint/xx/topic/seed-3"


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    """Recipe of a copy of the finished world; each test puts back what it damages."""
    recipe = copy_of(world, tmp_path_factory.mktemp("integrity"))
    code, _, err = run(f"run {recipe}")  # records note where files are now
    assert code == 0, err
    return recipe


def files_of(recipe):
    """All that a refused command must leave as it is."""
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime_ns, path.lstat().st_ino)
        for path in recipe.parent.rglob("*")
        if path.name != ".lock" and not path.is_dir()
    }


def refused_naming(recipe, path, command, *overrides, undone=()):
    """The one line of a refused command, which names a file or its folder and changes nothing on
    disk.

    What jobs leave that were begun before the damage was met, those in the folders `undone`, goes
    with the test.
    """
    before = files_of(recipe)
    line = refused(command, recipe, *overrides)
    assert str(path) in line or str(path.parent) in line, line
    assert len(line) < 600, line
    after = files_of(recipe)
    begun = tuple(str(recipe.parent / "run" / folder) for folder in undone)
    assert {
        file: facts
        for file, facts in after.items()
        if file in before or not str(file).startswith(begun)
    } == before
    return line


@contextlib.contextmanager
def set_aside(*paths):
    """Take files and folders away, and put them back at the end in place of whatever is there
    then.
    """
    kept = [
        (path, path.with_name(f"{path.name}.num_base")) for path in paths if os.path.lexists(path)
    ]
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


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def pending(workdir, *folders):
    """What makes the jobs of these folders undone: they and their records are taken away."""
    paths = [workdir / folder for folder in folders]
    return set_aside(*paths, *(path.with_name(f"{path.name}.job.json") for path in paths))


# (file or folder, jobs to be done anew, command that reads it)
READ_BY = [
    ("tokenizer/xx/tokenizer.model", ["tokens/xx"], "prepare"),
    ("tokens/xx/manifest.json", [], "prepare"),
    ("tokens/xx.job.json", [], "prepare"),
    ("pretrain/bl_base/model/config.json", ["build-mini/minipost"], "build-mini"),
    ("pretrain/bl_base/model/model.safetensors", ["build-mini/minipost"], "build-mini"),
    ("build-mini/minipost/mini/manifest.json", [], "adapt"),
    (f"{PACK}/manifest.json", [], "evaluate"),
    ("adapt/minijoint/xx/snapshots/step-00000004/embeddings.safetensors", [SCORES], "evaluate"),
    (f"{MODEL}/model.safetensors", [SCORES], "evaluate"),
    (f"{MODEL}/config.json", [SCORES], "evaluate"),
    (f"{SCORES}/scores.json", [], "report"),
]
DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "a list": lambda _: b"[1, 2]\n",
    "a byte flipped": flipped,
    "wrong types": lambda _: (
        b'{"files": 1, "inputs": 1, "complete": 1, "kind": 1, "architecture": 1, "step": "x"}\n'
    ),
    "nested deep": lambda _: b"[" * 100_000,
    "not UTF-8": lambda _: b'{"files": "\xff\xfe"}\n',
    "a folder": None,
}
# Every file in two of the ways, and every way in files of all steps.
DAMAGED = [
    pytest.param(*case, damage, id=f"{case[0]}-{damage}")
    for number, case in enumerate(READ_BY)
    for damage in (list(DAMAGES)[number % 7], list(DAMAGES)[(number + 3) % 7])
]


@pytest.mark.parametrize("name, undone, command, damage", DAMAGED)
def test_a_damaged_file(finished, name, undone, command, damage):
    path = finished.parent / "run" / name
    content = path.read_bytes()
    with set_aside(path), pending(finished.parent / "run", *undone):
        if DAMAGES[damage] is None:
            path.mkdir()
        else:
            path.write_bytes(DAMAGES[damage](content))
        refused_naming(finished, path, command, undone=undone)


@pytest.mark.parametrize("name", ["xx/00000.bin", "xx.*.blocks"])
def test_a_flipped_byte_of_what_a_step_trains_on(finished, name):
    """Found when the step begins: its record and settings are all that it writes."""
    workdir = finished.parent / "run"
    undone = ["adapt/bl_base/xx"]
    (path,) = (workdir / "tokens").glob(name)
    with written(path, flipped(path.read_bytes())), pending(workdir, *undone):
        only = "systems=[bl_base]"
        assert "damaged" in refused_naming(finished, path, "adapt", only, undone=undone)


@pytest.mark.parametrize("folder, command", [(PACK, "adapt"), ("pretrain/minijoint/run", "report")])
def test_a_file_in_the_place_of_a_folder(finished, folder, command):
    path = finished.parent / "run" / folder
    with written(path, b"a file"):
        refused_naming(finished, path, command)


@pytest.mark.parametrize(
    "source, target, command",
    [
        ("tokens/en", "tokens/xx", "prepare"),
        ("pretrain/bl_base/model", "pretrain/minijoint/model", "finetune"),
        ("build-mini/minipost/mini", "pretrain/bl_base/model", "adapt"),
        ("adapt/minijoint/xx/snapshots/step-00000000", PACK, "adapt"),
        ("adapt/minijoint/xx/snapshots/step-00000000", PACK, "run"),
        (
            "adapt/minijoint/xx/snapshots/step-00000000",
            "adapt/minijoint/xx/snapshots/step-00000004",
            "adapt",
        ),
        (
            "finetune/minijoint/topic/seed-3/model",
            "finetune/minijoint/topic/seed-4/model",
            "evaluate",
        ),
        ("evaluate/minijoint/xx/topic/seed-4", SCORES, "report"),
    ],
)
def test_what_another_job_made(finished, source, target, command):
    workdir = finished.parent / "run"
    with replaced(workdir / target, workdir / source):
        refused_naming(finished, workdir / target, command)


def test_nothing_is_done_before_what_is_refused_later(finished):
    """A run that must end at a stale job does not work on those before it."""
    finetune = finished.parent / "run/finetune/bl_base"
    stale = finetune / "qa/seed-4.job.json"
    with replaced(stale, finetune / "topic/seed-4.job.json"), pending(finetune, "topic/seed-3"):
        refused_naming(finished, finetune / "qa/seed-4", "run")
