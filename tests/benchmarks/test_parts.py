"""python -m benchmarks at tiny sizes: what is measured and recorded, and what a failure leaves."""

import json
import subprocess
import sys

import pytest

from benchmarks.operators import of_model
from benchmarks.record import runs_of
from tests.benchmarks.conftest import TINY
from tests.docs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.long]


def measured(out, part, *arguments):
    """(exit code, rows, page) of a part."""
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        part,
        *arguments,
        "--repeats",
        "1",
        "--out",
        str(out),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert runs_of(out, part), ended.stderr
    return ended.returncode, runs_of(out, part)[-1]["rows"], (out / f"{part}.md").read_text()


def steps(out, *arguments):
    return measured(
        out, "steps", "--set", *TINY, "--tokens", "32", "--seq-length", "16", *arguments
    )


def test_two_ranks_against_hugging_face(tmp_path):
    code, (row,), table = steps(
        tmp_path, "--steps", "adapt-mini", "--against", "hf", "--ranks", "2"
    )
    assert code == 0
    ours = row["contestants"]["ds_minimodel"]["seconds"]
    theirs = row["contestants"]["hf"]["seconds"]
    ratio = 2 * 32 / ours / (32 / theirs)
    assert f"| fp32, ZeRO 1, 2 ranks | ds_minimodel | {2 * 32 / ours:,.0f} |" in table
    assert f"| hf | {32 / theirs:,.0f} |" in table
    assert f"| {ratio:.2f} |" in table
    (run,) = runs_of(tmp_path, "steps")
    assert run["facts"]["commit"]
    assert "--ranks 2" in run["facts"]["command"]


def test_a_contestant_that_fails_does_not_take_the_others_along(tmp_path, monkeypatch):
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "transformers.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=":")
    code, (row,), table = steps(tmp_path, "--steps", "finetune", "--against", "hf")
    assert code == 1
    assert row["contestants"]["ds_minimodel"]["seconds"] > 0
    assert "broken on purpose" in row["contestants"]["hf"]["error"]
    assert "| hf | failed: hf: ImportError: broken on purpose |" in table


@pytest.mark.parametrize(
    "part, arguments, keys",
    [
        ("kernels", ["--ops", "dropout", "--no-compiled"], ["op", "shape", "seconds"]),
        ("stores", ["--gigabytes", "0.13", "0.26"], ["shards", "open_seconds", "sample_seconds"]),
        ("saves", ["--parameters", "1e4"], ["at_once", "background", "until_on_disk"]),
    ],
)
def test_a_part_adds_a_run_to_its_records(part, arguments, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = {"facts": {"device": "another", "date": "2026-01-01"}, "rows": []}
    (tmp_path / f"{part}.jsonl").write_text(json.dumps(before) + "\n")
    code, rows, table = measured(tmp_path, part, *arguments)
    assert code == 0
    assert rows
    assert all(row.keys() >= set(keys) for row in rows)
    assert runs_of(tmp_path, part)[0] == before
    assert "## another, 2026-01-01" in table
    assert {path.name for path in tmp_path.iterdir()} == {f"{part}.jsonl", f"{part}.md"}, (
        "nothing else is left"
    )


def test_what_a_layer_of_lora_launches_on_a_gpu():
    """24 products of four linear layers, forward and backward, and one operator for each of the
    others.
    """
    of_model("cuda", 2)  # computes the angles, once
    two = [passes.total() for passes in of_model("cuda", 2)]
    three = [passes.total() for passes in of_model("cuda", 3)]
    assert [more - fewer for more, fewer in zip(three, two)] == [19, 28]
