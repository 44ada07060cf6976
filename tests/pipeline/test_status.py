"""`status` and `clean` on the finished world: what each job has come to, and what may go."""

import fcntl
import json
import os
import shutil

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.common.files import lock
from ds_minimodel.pipeline.order import STEPS
from ds_minimodel.recipe.jobs import State, state_of
from ds_minimodel.recipe.reading import load_recipe

from ..forks import run
from .conftest import copy_of, refused


def do(capsys, *arguments):
    """What a command prints that ends well; in this process, for torch's sake."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert end.value.code == 0, err
    return out


def states(capsys, recipe, *overrides):
    rows = json.loads(do(capsys, "status", recipe, "--json", *overrides))["jobs"]
    return {row["name"]: row for row in rows}


def everything(folder):
    """All that lies in a folder, with the times at which it was changed, the folders' too."""
    return {path: path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@pytest.fixture
def recipe(world, tmp_path):
    return copy_of(world, tmp_path)


def test_a_finished_run_is_complete_and_nothing_is_written(recipe, capsys):
    before = everything(recipe.parent)
    jobs = states(capsys, recipe)
    assert {row["state"] for row in jobs.values()} == {"complete"}
    assert {"tokenizer/en", "adapt/minijoint/xx", "evaluate/minijoint/xx/qa/seed-3"} < jobs.keys()
    assert everything(recipe.parent) == before
    page = do(capsys, "status", recipe, "--watch", "1")  # ends by itself, because all is complete
    assert f"{len(jobs)} jobs: {len(jobs)} complete" in page


def test_a_flipped_byte_of_anything_that_was_made_is_found(recipe, capsys):
    """`status` takes sizes and manifests for it, `status --verify` reads all."""
    assert do(capsys, "status", recipe, "--verify") == do(capsys, "status", recipe)
    made = [path for path in (recipe.parent / "run").rglob("*") if path.is_file() and "report" not in path.parts]
    for path in {
        path.name: path for path in made if path.suffix in (".json", ".jsonl", ".safetensors", ".model")
    }.values():
        content = path.read_bytes()
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(AssertionError, match=f"is damaged: .*{path.name}"):
            do(capsys, "status", recipe, "--verify")
        path.write_bytes(content)


def test_what_is_stale_running_unfinished_or_damaged(recipe, capsys):
    workdir = recipe.parent / "run"
    assert states(capsys, recipe, "build_mini.lr=1e-3")["build-mini/minipost"]["why"] == "build_mini.lr: 0.002 -> 0.001"
    (workdir / "evaluate/minijoint/xx/qa/seed-3/scores.json").write_text("[]")
    folder = workdir / "pretrain/bl_base"
    (workdir / "tokens/xx.job.json").unlink()
    record = json.loads((workdir / "pretrain/bl_base.job.json").read_text())
    (workdir / "pretrain/bl_base.job.json").write_text(json.dumps({"inputs": record["inputs"], "complete": False}))
    metrics = (folder / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "run/metrics.jsonl").write_text("".join(metrics[:6]) + '{"step": 7, "lo')  # a line that is being written
    jobs = states(capsys, recipe)
    expected = {
        "pretrain/bl_base": ("unfinished", ""),
        "pretrain/bl_small": ("complete", ""),
        "tokens/xx": ("damaged", "its record is missing"),
        "adapt/bl_base/xx": ("stale", f"{folder}: missing or not finished"),
        "evaluate/minijoint/xx/qa/seed-3": ("damaged", "scores.json: missing or of another size"),
    }
    for name, (state, why) in expected.items():
        assert jobs[name]["state"] == state and why in jobs[name]["why"]
    training = jobs["pretrain/bl_base"]["training"]
    assert (training["step"], training["steps"]) == (6, 8)
    assert training["seconds_left"] == pytest.approx(2 / training["rate"])
    with lock(workdir / "pretrain/bl_base.lock"):
        row = states(capsys, recipe)["pretrain/bl_base"]
    assert row["state"] == "running" and row["why"] == f"process {os.getpid()} on {os.uname().nodename}"
    assert row["training"] == training


def left(capsys, recipe, *arguments):
    return json.loads(do(capsys, "status", recipe, "--json", *arguments))["left"]


def test_what_is_left_goes_by_jobs_of_its_kind(recipe, capsys):
    workdir, nowhere = recipe.parent / "run", f"workdir={recipe.parent}/none"
    assert left(capsys, recipe) == {"seconds": 0, "jobs": 0, "unknown": 0}
    assert left(capsys, recipe, nowhere) == {"seconds": 0, "jobs": 0, "unknown": 26}
    took = states(capsys, recipe)["finetune/bl_base/topic/seed-3"]["training"]
    for name in ("finetune/bl_base/topic/seed-4", "adapt/bl_base/xx"):
        (workdir / f"{name}.job.json").unlink()
        shutil.rmtree(workdir / name)
    found = left(capsys, recipe)
    assert found == {"seconds": pytest.approx(took["steps"] / took["rate"]), "jobs": 1, "unknown": 1}
    assert "of training left in 1 job" in do(capsys, "status", recipe)


def with_a_language_of_tests(recipe):
    """The recipe with text and test data of another language, yy, which is no target yet; its text."""
    text, data = recipe.read_text(), recipe.parent
    for name in ("xx.txt", "topic.xx.jsonl", "qa.xx.json"):
        (data / name.replace("xx", "yy")).write_bytes((data / name).read_bytes())
        text = text.replace(f"xx: {data}/{name}", f"xx: {data}/{name}, yy: {data}/{name.replace('xx', 'yy')}")
    recipe.write_text(text)
    return text


def jobs_left(recipe):
    jobs = [job for step in ("evaluate", "report") for job in STEPS[step].jobs(load_recipe(recipe))]
    return [
        str(job.folder.relative_to(recipe.parent / "run")) for job in jobs if state_of(job)[0] is not State.COMPLETE
    ]


def test_a_language_that_is_added_is_scored_alone(recipe):
    text = with_a_language_of_tests(recipe)
    assert jobs_left(recipe) == []
    recipe.write_text(text.replace("targets: [xx]", "targets: [xx, yy]"))
    systems = ("bl_base", "bl_small", "minijoint", "minipost", "multijoint")
    alone = [f"evaluate/baselines/yy/{task}" for task in ("topic", "qa")]
    seeds = [f"{task}/seed-{seed}" for task in ("topic", "qa") for seed in (3, 4)]
    assert jobs_left(recipe) == [f"evaluate/{system}/yy/{seed}" for system in systems for seed in seeds] + alone


def test_finetuning_seeds_grow_and_shrink(recipe, capsys):
    """What is there counts, what is missing is made, what is too much stays on disk and out of the report."""
    made = everything(recipe.parent / "run/finetune") | everything(recipe.parent / "run/evaluate")
    for seeds, left in ((3, ["finetune/bl_base/topic/seed-5", "evaluate/bl_base/xx/qa/seed-5"]), (1, []), (3, [])):
        keys = ("systems=[bl_base, multijoint]", f"finetune.seeds={seeds}")
        jobs = {name: row["state"] for name, row in states(capsys, recipe, *keys).items()}
        pending = {name for name, state in jobs.items() if state != "complete"}
        assert pending >= set(left) and all(name.endswith("seed-5") and left for name in pending)
        code, _, err = run("run", recipe, *keys)
        assert code == 0, err
        rows = json.loads((recipe.parent / "run/report/scores.json").read_text())
        assert {row["seed"] for row in rows} == set(range(3, 3 + seeds))
    now = everything(recipe.parent / "run/finetune") | everything(recipe.parent / "run/evaluate")
    assert all(now[path] == when for path, when in made.items() if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("command", ["status", "clean", "flops", "plan"])
def test_commands_that_make_nothing_have_nothing_to_rebuild(recipe, command):
    assert "unrecognized arguments: --rebuild" in refused(command, recipe, "--rebuild")


def test_clean_leaves_alone_what_is_not_its_own(recipe, capsys):
    """Names that only look as if `--rebuild` had made them, links, and snapshots of which scores are damaged."""
    workdir, outside = recipe.parent / "run", recipe.parent / "other"
    snapshots = workdir / "adapt/minijoint/xx/snapshots"
    for path in (
        workdir / "thesis.old-20261122/only-copy.txt",
        workdir / "adapt/minijoint/notes.old-20261122/a.txt",
        snapshots / "step-00000004.bak/a.txt",
        outside / "adapt/bl_base.old-0123abcd/a.txt",
    ):
        path.parent.mkdir(parents=True)
        path.write_text("precious")
    scores = workdir / "evaluate/bl_base/xx/topic/seed-3/scores.json"
    scores.write_bytes(b" " * scores.stat().st_size)
    with open(workdir / "evaluate/minipost/xx/other.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        named = do(capsys, "clean", recipe)
    assert "adapt/minijoint/xx/snapshots/step-00000004: snapshots, all scored" in named
    assert "precious" not in named and "old-" not in named and ".bak" not in named
    assert "adapt/bl_base" not in named, "its scores are damaged"
    assert "adapt/minipost" not in named, "another recipe scores it"
    (snapshots / "step-00000000").rename(outside / "snapshot")
    (snapshots / "step-00000000").symlink_to(outside / "snapshot")
    with pytest.raises(AssertionError, match="step-00000000: a link"):
        do(capsys, "clean", recipe, "--yes")
    (snapshots / "step-00000000").unlink()
    do(capsys, "clean", recipe, "--yes")
    assert (outside / "snapshot").is_dir() and len(list(recipe.parent.rglob("a.txt"))) == 3


def test_clean_names_and_then_removes_and_all_stays_complete(recipe, capsys):
    workdir = recipe.parent / "run"
    assert do(capsys, "tokenizer", recipe, "tokenizer.input_sentences=1000", "--rebuild") == ""
    do(capsys, "tokenizer", recipe, "--rebuild")
    before = everything(workdir)
    named = do(capsys, "clean", recipe)
    assert everything(workdir) == before and "--yes removes it" in named
    assert len([line for line in named.splitlines() if line.endswith(": moved aside by --rebuild")]) == 8
    assert "adapt/minijoint/xx/snapshots/step-00000004: snapshots, all scored" in named
    assert do(capsys, "clean", recipe, "--yes").endswith("removed\n")
    left = everything(workdir).keys()
    assert not [path for path in left if ".old-" in path.name or path.name.startswith("step-")]
    assert {row["state"] for row in states(capsys, recipe).values()} == {"complete"}
    assert do(capsys, "clean", recipe, "--yes") == "nothing to remove\n"
    (workdir / "evaluate/minijoint/xx/topic/seed-3.job.json").unlink()
    (workdir / "evaluate/minijoint/xx/topic/seed-3").rename(recipe.parent / "topic")
    assert "snapshots/step-00000000: removed by `ds-minimodel clean`" in refused("evaluate", recipe)
