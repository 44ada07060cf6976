"""Jobs: what is complete is skipped, what is unfinished goes on, what was made otherwise is
refused.
"""

import os
import shutil
from dataclasses import replace

import pytest

from ds_minimodel.common import files
from ds_minimodel.common.files import atomic_folder, write_manifest
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.records import Job, State, inputs_hash, is_complete, state_of
from ds_minimodel.pipeline.training import finished_checkpoints
from ds_minimodel.pipeline.work import begin, finish, move_aside_if_stale, sweep_up, withdraw
from ds_minimodel.text.reader import identity_of_text
from tests.helpers.files import read_json
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.slow


class Counter:
    """Makes an artifact as a training step does, with checkpoints beside it; counts the times."""

    def __init__(self, folder):
        self.folder = folder
        self.times = 0
        self.stops = False

    def __call__(self):
        self.times += 1
        checkpoint = self.folder / "run/checkpoints/step-00000001"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "state").write_text("state")
        write_manifest(checkpoint)
        if self.stops:
            raise InterruptedError
        with atomic_folder(self.folder / "body") as artifact:
            (artifact / "weights").write_text(f"made {self.times} times")
            write_manifest(artifact, kind="body")


def job_in(folder, inputs, parents=()):
    parents = tuple(parent.folder for parent in parents)
    return Job(folder, inputs, parents, Counter(folder), finished_checkpoints(folder))


def run(*jobs):
    """What a step does with its jobs; returns whether anything was made."""
    made = False
    for job in jobs:
        if begin(job):
            job.make()
            finish(job)
            made = True
    return made


def stop(job):
    """Do it as a step that is stopped in the middle."""
    job.make.stops = True
    with pytest.raises(InterruptedError):
        run(job)
    job.make.stops = False


def weights(job):
    return (job.folder / "body/weights").read_text()


INPUTS = {"seed": 1, "pretrain": {"steps": 10, "lr": 7e-4}, "schedule": [(4, 0.5), (8, 0.5)]}


@pytest.fixture
def job(tmp_path):
    return job_in(tmp_path / "work/pretrain", INPUTS)


def test_what_is_unfinished_goes_on(job):
    stop(job)
    assert not is_complete(job)
    assert (job.folder / "run/checkpoints/step-00000001/state").exists()  # what it goes on from
    assert run(job)
    assert is_complete(job)


@pytest.mark.parametrize(
    "change, difference",
    [
        ({"seed": 2}, "seed: 1 -> 2"),
        ({"pretrain": {"steps": 10, "lr": 1e-3}}, "pretrain.lr: 0.0007 -> 0.001"),
        ({"blocks": "none"}, "blocks: None -> none"),
    ],
)
@pytest.mark.parametrize("unfinished", [False, True], ids=["complete", "unfinished"])
def test_what_was_made_from_other_inputs_is_refused_and_not_touched(
    job, change, difference, unfinished
):
    (stop if unfinished else run)(job)
    before = sorted((path, path.read_bytes()) for path in job.folder.rglob("*") if path.is_file())
    other = job_in(job.folder, {**INPUTS, **change})
    for ask in (is_complete, begin):
        with refuses() as refusal:
            ask(other)
        assert f"{job.folder}: made from another recipe or other data ({difference})" in str(
            refusal.value
        )
        assert "or `ds-minimodel run RECIPE --rebuild`" in str(refusal.value)
    assert before == sorted(
        (path, path.read_bytes()) for path in job.folder.rglob("*") if path.is_file()
    )


def test_rebuild_moves_what_is_stale_aside_and_nothing_else(job):
    run(job)
    move_aside_if_stale(job)
    assert is_complete(job)
    other = job_in(job.folder, {**INPUTS, "seed": 2})
    move_aside_if_stale(other)
    assert not job.folder.exists()
    assert run(other)
    old = [path for path in job.folder.parent.iterdir() if path.name.startswith("pretrain.old-")]
    assert [(path / "body/weights").read_text() for path in old] == ["made 1 times"]
    records = list(job.folder.parent.glob("pretrain.job.json.old-*"))
    assert [read_json(path)["inputs"]["seed"] for path in records] == [1]


def growing(folder, steps, **change):
    """A job whose steps may grow, and what it was told to go back to."""
    told = []
    made = job_in(folder, {**INPUTS, "pretrain": {"steps": steps, "lr": 7e-4}, **change})
    return replace(made, grows="pretrain", go_back=told.append), told


@pytest.mark.parametrize("unfinished", [False, True], ids=["complete", "unfinished"])
def test_where_steps_may_grow_the_job_goes_on_and_its_children_after_it(job, unfinished):
    layout = WorkdirLayout(job.folder.parent)
    parent = growing(job.folder, 10)[0]
    child = job_in(job.folder.with_name("child"), {"seed": 1, "adapt": {"steps": 3}}, [parent])
    run(parent, child)
    of_checkpoints = inputs_hash(child.folder, "adapt")
    middle, _ = growing(job.folder, 15)
    (stop if unfinished else run)(middle)
    longer, told = growing(job.folder, 20)
    assert state_of(longer, layout) == (State.PENDING, "continues: pretrain.steps: 15 -> 20")
    move_aside_if_stale(longer)
    assert not is_complete(longer)
    assert run(longer)
    assert is_complete(longer)
    assert [inputs["pretrain"]["steps"] for inputs in told] == [15]
    assert state_of(child, layout)[0] is State.PENDING
    assert run(child)
    assert is_complete(child)
    assert weights(child) == "made 2 times"
    shutil.rmtree(job.folder)
    job.folder.with_name("pretrain.job.json").unlink()  # as is advised where it is damaged
    assert run(longer)
    assert inputs_hash(child.folder, "adapt") == of_checkpoints != inputs_hash(child.folder), (
        "from which it goes on"
    )
    for other in (growing(job.folder, 19)[0], growing(job.folder, 30, seed=2)[0]):
        with refuses("made from another recipe"):
            begin(other)


def test_a_parent_made_again_otherwise_is_another(job):
    parent = growing(job.folder, 10)[0]
    child = job_in(job.folder.with_name("child"), {"seed": 1}, [parent])
    run(parent, child)
    other = growing(job.folder, 20, seed=2)[0]
    move_aside_if_stale(other)
    run(other)
    with refuses("made from another recipe"):
        begin(child)


@pytest.mark.parametrize("above", ["work", "checkpoints"])
def test_an_artifact_that_is_deleted_is_made_again(tmp_path, above):
    job = job_in(tmp_path / above / "pretrain", INPUTS)
    run(job)
    shutil.rmtree(job.folder / "body")
    assert not is_complete(job)
    assert run(job)
    assert is_complete(job)
    assert weights(job) == "made 2 times"


def test_a_job_waits_for_its_parents(tmp_path, job):
    child = job_in(tmp_path / "work/adapt", {}, [job])
    with refuses(f"{job.folder}: missing or not finished; run the step"):
        begin(child)
    stop(job)
    with refuses("not finished"):
        begin(child)
    assert run(job, child)
    assert not run(job, child)


@pytest.mark.parametrize("index", [0, 2**21, -1])
def test_text_that_was_edited_is_other_text(tmp_path, index):
    """Its time may be as before."""
    text = tmp_path / "en.txt"
    folder = tmp_path / "work/tokens"
    text.write_bytes(b"a" * 5 * 2**20)
    facts = text.stat()
    former = Job(folder, {"text": identity_of_text([text])}, (), Counter(folder))
    run(former)
    content = bytearray(text.read_bytes())
    content[index] = ord("b")
    text.write_bytes(content)
    os.utime(text, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    job = Job(folder, {"text": identity_of_text([text])}, (), Counter(folder))
    with refuses(r"other data .text\.0\.sha256: "):
        is_complete(job)
    move_aside_if_stale(job)
    assert run(job)


def test_a_copy_of_a_text_is_the_same_text_and_is_read_for_that_once(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        files,
        "sha256_of_file",
        lambda path, hash_of=files.sha256_of_file: read.append(path) or hash_of(path),
    )

    def is_made(text):
        """By a process that knows of no hash but those of the record."""
        files.Content.sha256.cache_clear()
        return run(Job(folder, {"text": identity_of_text([text])}, (), Counter(folder)))

    text = tmp_path / "en.txt"
    folder = tmp_path / "work/tokens"
    text.write_bytes(b"a boat\n" * 1000)
    assert is_made(text)
    assert not is_made(text)
    assert read.count(text) == 1
    (tmp_path / "moved").mkdir()
    copy = shutil.copyfile(text, tmp_path / "moved/en.txt")
    os.utime(copy, (1, 1))
    assert not is_made(copy)
    assert not is_made(copy)
    assert read.count(copy) == 1, "as is tar's"


def test_a_job_that_is_refused_before_it_made_anything_leaves_nothing(tmp_path):
    job = job_in(tmp_path / "pretrain/bl_base", INPUTS)
    layout = WorkdirLayout(tmp_path)
    begin(job)
    (job.folder / "run").mkdir(parents=True)
    withdraw(layout, job)
    assert list(tmp_path.iterdir()) == []
    begin(job)
    (job.folder / "run").mkdir(parents=True)
    (job.folder / "run/state").write_text("half of the steps")
    withdraw(layout, job)
    assert begin(job)
    assert (job.folder / "run/state").exists()


def test_what_killed_processes_were_writing_is_swept(tmp_path):
    job = job_in(tmp_path / "pretrain/bl_base", INPUTS)
    run(job)
    names = {"pretrain/bl_base.job.json.tmp17": False, "pretrain/bl_base/body/weights.tmp9": False}
    names |= {"pretrain/bl_base.tmpx": True, "notes.tmp1": True}
    for name in names:
        (tmp_path / name).write_text("half")
    sweep_up(WorkdirLayout(tmp_path))
    assert {name: (tmp_path / name).exists() for name in names} == names
    assert is_complete(job)


def test_a_child_does_without_a_parent_that_is_gone_once_it_is_complete(tmp_path, job):
    child = job_in(tmp_path / "work/adapt", {}, [job])
    other = job_in(tmp_path / "work/other", {}, [job])
    run(job, child)
    shutil.rmtree(job.folder / "body")
    assert is_complete(child)
    with refuses(f"{job.folder}: no longer all there; run the step that makes it"):
        begin(other)
    assert not (tmp_path / "work/other.job.json").exists()
