"""Atomic writes under real faults, JSON that is damaged, and what manifests detect."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import (
    Count,
    Stored,
    atomic_folder,
    atomic_write,
    lock,
    read_json,
    read_manifest,
    read_model,
    read_model_lines,
    write_json,
    write_manifest,
)
from tests.helpers.refusals import refuses


def contents(folder):
    """{path below `folder`: bytes} of its files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextlib.contextmanager
def limit_of_files(size):
    """Let the system refuse what is written to a file behind `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_atomic_write_replaces_the_file_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "new/file"
    with atomic_write(path) as file:
        file.write(b"first")
        assert not path.exists()
    with atomic_write(path, "w") as file:
        file.write("zweité")
        assert path.read_bytes() == b"first"
    assert contents(tmp_path) == {"new/file": "zweité".encode()}


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    code = (
        "import os, signal, sys; from ds_minimodel.common.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9
    assert path.read_bytes() == b"old"


def save_plainly(path):
    path.write_bytes(bytes(10_000))


def save_with_safetensors(path):
    save_file({"a": torch.zeros(10_000)}, path)


def save_with_tokenizers(path):
    vocab = {"a" * 9 + str(id): id for id in range(1000)}
    Tokenizer(models.BPE(vocab=vocab, merges=[])).save(str(path))


def save_with_torch(path):
    with open(path, "wb") as file:
        torch.save(torch.zeros(10_000), file)


def copy_a_folder(path):
    shutil.copytree(Path(__file__).parent, path)


@pytest.mark.parametrize(
    "save",
    [save_plainly, save_with_safetensors, save_with_tokenizers, save_with_torch, copy_a_folder],
)
def test_a_limit_on_the_size_of_files_is_named_whatever_library_meets_it(save, tmp_path):
    message = f"^{tmp_path}/a: cannot write: File too large; "
    with (
        refuses(message),
        atomic_folder(tmp_path / "a") as folder,
        limit_of_files(5_000),
    ):
        save(folder / "file")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_the_umask_decides_who_may_read_whatever_library_writes(umask, tmp_path):
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "a") as folder:
            (folder / "b").mkdir()
            save_file({"a": torch.zeros(1)}, folder / "b/weights")
            (folder / "plain").touch()
        with atomic_write(tmp_path / "a/c"):
            pass
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    files = 0o666 & ~umask
    folders = 0o777 & ~umask
    assert modes == {"a": folders, "b": folders, "weights": files, "plain": files, "c": files}


def test_one_folder_is_made_by_one_process_at_a_time(tmp_path):
    """A second one neither clears what the first is writing nor puts its own over what is
    complete.
    """
    with atomic_folder(tmp_path / "a", is_new=True) as folder:
        (folder / "file").write_text("first")
        with (
            refuses(f"^{tmp_path}/a: another run is at work here "),
            atomic_folder(tmp_path / "a"),
        ):
            pass
    with (
        refuses("a: exists; choose another name"),
        atomic_folder(tmp_path / "a", is_new=True),
    ):
        pass
    assert contents(tmp_path) == {"a/file": b"first"}


def test_a_lock_leaves_nothing_of_a_refusal(tmp_path):
    with refuses("refused"), lock(tmp_path / "a/b/job.lock"):
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []
    with lock(tmp_path / "a/job.lock"):
        pass
    with refuses("refused"), lock(tmp_path / "a/job.lock"):
        raise UserError("refused")
    assert (tmp_path / "a/job.lock").exists()
    with (
        limit_of_files(0),
        refuses("b.lock: cannot write: "),
        lock(tmp_path / "a/b.lock"),
    ):
        pass
    assert not (tmp_path / "a/b.lock").exists()


def test_nothing_is_written_through_a_link(tmp_path):
    """A file or folder is replaced by a rename, and a lock that is a link is refused."""
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "folder-outside").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    (tmp_path / "lock").symlink_to(tmp_path / "outside")
    (tmp_path / "folder").symlink_to(tmp_path / "folder-outside")
    with atomic_write(tmp_path / "file", "w") as file:
        file.write("new")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("new")
    with pytest.raises(OSError, match="Too many levels of symbolic links"), lock(tmp_path / "lock"):
        pass
    assert (tmp_path / "outside").read_text() == "precious"
    assert list((tmp_path / "folder-outside").iterdir()) == []
    assert (tmp_path / "file").read_text() == "new"
    assert (tmp_path / "folder/a").read_text() == "new"


def test_atomic_folder_appears_whole_or_not_at_all(tmp_path):
    left_over = tmp_path / "folder.tmp"
    left_over.mkdir()
    (left_over / "of a killed process").write_text("half")
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "folder") as folder:
        (folder / "file").write_text("half")
        raise RuntimeError
    assert contents(tmp_path) == {}
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "below").mkdir()
        (folder / "below/file").write_text("whole")
        assert not (tmp_path / "folder").exists()
    assert contents(tmp_path) == {"folder/below/file": b"whole"}
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "other").write_text("new")
    assert contents(tmp_path) == {"folder/other": b"new"}


def test_json_round_trip_and_damage(tmp_path):
    path = tmp_path / "file.json"
    value = {"b": [1, 2.5, None, True], "a": {"ü": "字"}}
    write_json(path, value)
    assert read_json(path) == value
    assert "字" in path.read_text()  # people read these files
    for damaged in (path.read_bytes()[:-5], b"\xff\xfe"):
        path.write_bytes(damaged)
        with refuses("file.json: not a readable JSON file"):
            read_json(path)
    with refuses("none.json: no such file"):
        read_json(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe.json")
    with refuses("pipe.json: a folder, a pipe or a device"):
        read_json(tmp_path / "pipe.json")


class Thing(Stored):
    """What the tests below read."""

    size: Count
    names: list[str] = []


def test_a_typed_file_is_read_or_refused_with_its_key(tmp_path):
    path = tmp_path / "thing.json"
    write_json(path, {"size": 3, "other": 1})
    thing = read_model(path, Thing, "delete it")
    assert thing.size == 3
    assert thing.names == []
    assert thing.model_extra == {"other": 1}
    for value in ({"size": "3"}, {"size": True}, {"size": -1}, {}):
        write_json(path, value)
        with refuses("thing.json: size: .*; delete it$"):
            read_model(path, Thing, "delete it")
    write_json(path, {"size": 1, "names": ["a", 1]})
    with refuses("thing.json: names.1: "):
        read_model(path, Thing, "delete it")


@pytest.mark.parametrize(
    "value", ["7", "null", "[1]", "[" * 100_000, "9" * 5000, "NaN", '{"size": 1e400}', ""]
)
def test_other_json_than_expected_is_refused_in_one_line(tmp_path, value):
    path = tmp_path / "thing.json"
    path.write_text(value)
    with refuses() as refusal:
        read_model(path, Thing, "delete it")
    message = str(refusal.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_line_that_is_damaged_is_named_unless_a_kill_cut_it_short(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"size": 1}\n{"si')
    assert [thing.size for thing in read_model_lines(path, Thing, "delete it")] == [1]
    for second, message in [('{"si', "not JSON"), ('{"size": -1}', "size: "), ("7", "")]:
        path.write_text(f'{{"size": 1}}\n{second}\n{{"size": 3}}\n')
        with refuses(f"lines.jsonl:2: {message}.*; delete it"):
            read_model_lines(path, Thing, "delete it")


def test_a_manifest_detects_a_flipped_bit_and_without_files_is_refused(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "weights").write_bytes(bytes(range(100)))
    (tmp_path / "below/config").write_bytes(b"config")
    write_manifest(tmp_path, kind="test", steps=3)
    damaged = bytearray(range(100))
    damaged[50] ^= 1
    (tmp_path / "weights").write_bytes(damaged)
    assert read_manifest(tmp_path)["kind"] == "test"  # sizes alone do not show it
    with refuses("weights: damaged"):
        read_manifest(tmp_path, verify=True)
    # A manifest without files would verify nothing.
    write_json(tmp_path / "manifest.json", {"kind": "test", "files": {}})
    message = "manifest.json: files: Dictionary should have at least 1 item"
    with refuses(message):
        read_manifest(tmp_path)
