"""`status` on the finished world: what each job has come to."""

import json
import os

import pytest

from ds_minimodel.common.files import lock, note_holder
from tests.helpers.commands import answered
from tests.helpers.files import read_json, write_json

from ..forks import done
from .conftest import copy_of

pytestmark = pytest.mark.slow


def states(recipe, *overrides):
    rows = json.loads(answered("status", recipe, "--json", *overrides))["jobs"]
    return {row["name"]: row for row in rows}


def everything(folder):
    """All that lies in a folder, with the times at which it was changed, the folders' too."""
    return {path: path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@pytest.fixture
def recipe(world, tmp_path):
    return copy_of(world, tmp_path)


def test_a_finished_run_is_complete_and_nothing_is_written(recipe):
    for path in recipe.parent.glob("*.txt"):
        os.utime(path, (1, 1))  # as tar leaves it, which keeps no nanoseconds
    before = everything(recipe.parent)
    jobs = states(recipe)
    assert {row["state"] for row in jobs.values()} == {"complete"}
    assert {"tokenizer/en", "adapt/minijoint/xx", "evaluate/minijoint/xx/qa/seed-3"} < jobs.keys()
    assert everything(recipe.parent) == before
    page = answered("status", recipe)
    assert f"{len(jobs)} jobs: {len(jobs)} complete" in page


def test_text_may_go_once_it_was_read(recipe):
    """But not be another one."""
    (text := recipe.parent / "xx.txt").rename(aside := recipe.parent / "elsewhere.txt")
    assert {row["state"] for row in states(recipe).values()} == {"complete"}
    done(f"run {recipe}")
    with pytest.raises(AssertionError, match="yy.txt: no such text file"):
        answered("status", recipe, f"data.text.xx={recipe.parent}/yy.txt")
    with pytest.raises(AssertionError, match="xx.txt: no such text file"):
        answered("status", recipe, f"data.text.xx=[{text}, {aside}]")
    text.write_text(aside.read_text() + "more\n")
    assert states(recipe)["corpus/xx"]["why"].startswith("text.0.bytes: ")
    both = f"data.text.xx=[{text}, {aside}]", f"workdir={recipe.parent}/both"
    done(f"corpus {recipe}", *both)
    text.unlink()
    assert states(recipe, *both)["corpus/xx"]["state"] == "complete"
    aside.write_text(aside.read_text().replace("q", "p"))
    with pytest.raises(AssertionError, match="xx.txt: no such text file"):
        answered("status", recipe, *both)


def test_a_flipped_byte_of_anything_that_was_made_is_found(recipe):
    """`status` takes sizes and manifests for it, `status --verify` reads all."""
    assert answered("status", recipe, "--verify") == answered("status", recipe)
    made = [
        path
        for path in (recipe.parent / "run").rglob("*")
        if path.is_file() and "report" not in path.parts
    ]
    # A changed record is one of other inputs: stale.
    made = [path for path in made if not path.name.endswith(".job.json")]
    made = [path for path in made if path.parent.name != "run"]  # logs
    for path in {
        path.name: path for path in made if path.suffix in (".json", ".safetensors", ".model")
    }.values():
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(AssertionError, match=f"is damaged: .*{path.name}"):
            answered("status", recipe, "--verify")
        path.write_bytes(content)


def test_what_is_stale_running_unfinished_or_damaged(recipe):
    workdir = recipe.parent / "run"
    assert (
        states(recipe, "build_mini.lr=1e-3")["build-mini/minipost"]["why"]
        == "build_mini.lr: 0.002 -> 0.001"
    )
    (workdir / "evaluate/minijoint/xx/qa/seed-3/scores.json").write_text("[]")
    folder = workdir / "pretrain/bl_base"
    (workdir / "tokens/xx.job.json").unlink()
    record = read_json(workdir / "pretrain/bl_base.job.json")
    write_json(
        workdir / "pretrain/bl_base.job.json", {"inputs": record["inputs"], "complete": False}
    )
    metrics = (folder / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    # The last line is still being written.
    (folder / "run/metrics.jsonl").write_text("".join(metrics[:6]) + '{"step": 7, "lo')
    jobs = states(recipe)
    expected = {
        "pretrain/bl_base": ("unfinished", ""),
        "pretrain/bl_small": ("complete", ""),
        "tokens/xx": ("damaged", "its record is missing"),
        "adapt/bl_base/xx": ("outdated", f"{folder}: missing or not finished"),
        "evaluate/minijoint/xx/qa/seed-3": ("damaged", "scores.json: missing or of another size"),
    }
    for name, (state, why) in expected.items():
        assert jobs[name]["state"] == state
        assert why in jobs[name]["why"]
    training = jobs["pretrain/bl_base"]["training"]
    assert training["step"] == 6
    assert training["steps"] == 8
    assert training["seconds_left"] == pytest.approx(2 / training["rate"])
    with lock(workdir / ".lock"):
        note_holder(workdir / ".lock", "pretrain/bl_base")
        row = states(recipe)["pretrain/bl_base"]
    assert row["state"] == "running"
    assert row["why"] == f"process {os.getpid()} on {os.uname().nodename}"
    assert row["training"] == training


def test_a_language_that_is_added_is_scored_alone(recipe):
    """And test data of a language that is no target yet change nothing."""
    text = recipe.read_text()
    data = recipe.parent
    for name in ("xx.txt", "topic.xx.jsonl", "qa.xx.json"):
        added = data / name.replace("xx", "yy")
        added.write_bytes((data / name).read_bytes())
        text = text.replace(f"xx: {data}/{name}", f"xx: {data}/{name}, yy: {added}")
    left = []
    for targets in ("[xx]", "[xx, yy]"):
        recipe.write_text(text.replace("targets: [xx]", f"targets: {targets}"))
        left.append({name for name, row in states(recipe).items() if row["state"] != "complete"})
    assert left[0] == set()
    assert {"evaluate/minijoint/yy/qa/seed-4", "adapt/bl_base/yy"} <= left[1]
    assert all("yy" in name.split("/") for name in left[1])


def test_finetuning_seeds_grow_and_shrink(recipe):
    """What is there counts, what is missing is made, what is too much stays on disk and out of the
    report.
    """
    made = everything(recipe.parent / "run/finetune") | everything(recipe.parent / "run/evaluate")
    third = ["finetune/minijoint/topic/seed-5", "evaluate/minijoint/xx/qa/seed-5"]
    for seeds, left in ((3, third), (1, []), (3, [])):
        keys = ("systems=[minijoint]", f"finetune.seeds={seeds}")
        jobs = {name: row["state"] for name, row in states(recipe, *keys).items()}
        pending = {name for name, state in jobs.items() if state != "complete"}
        assert pending >= set(left)
        assert all(name.endswith("seed-5") and left for name in pending)
        done(f"run {recipe}", *keys)
        rows = read_json(recipe.parent / "run/report/scores.json")
        assert {row["seed"] for row in rows} == set(range(3, 3 + seeds))
    now = everything(recipe.parent / "run/finetune") | everything(recipe.parent / "run/evaluate")
    # Records note where the task files, which are copies here, lie now.
    other = (
        ".job.json",
        ".lock",
    )
    assert all(
        now[path] == when
        for path, when in made.items()
        if path.is_file() and not path.name.endswith(other)
    )
