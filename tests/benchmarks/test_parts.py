"""python -m benchmarks at tiny sizes: what is measured and recorded, and what a failure leaves."""

import json
import random
import subprocess
import sys

import pytest

from benchmarks.record import runs_of

from .test_benchmarks import ROOT, TINY


def measured(out, part, *arguments):
    """(exit code, rows, page) of a part."""
    command = [sys.executable, "-m", "benchmarks", part, *arguments, "--repeats", "1", "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert runs_of(out, part), ended.stderr
    return ended.returncode, runs_of(out, part)[-1]["rows"], (out / f"{part}.md").read_text()


def steps(out, *arguments):
    return measured(out, "steps", "--set", *TINY, "--tokens", "32", "--seq-length", "16", *arguments)


def test_two_ranks_against_hugging_face(tmp_path):
    code, (row,), table = steps(tmp_path, "--steps", "adapt-mini", "--against", "hf", "--ranks", "2")
    assert code == 0
    ours, theirs = row["contestants"]["ds_minimodel"]["seconds"], row["contestants"]["hf"]["seconds"]
    ratio = 2 * 32 / ours / (32 / theirs)
    assert f"| fp32, ZeRO 1, 2 ranks | ds_minimodel | {2 * 32 / ours:,.0f} |" in table
    assert f"| hf | {32 / theirs:,.0f} |" in table and f"| {ratio:.2f} |" in table
    (run,) = runs_of(tmp_path, "steps")
    assert run["facts"]["commit"] and "--ranks 2" in run["facts"]["command"]


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


def test_a_mistake_is_one_line():
    command = [sys.executable, "-m", "benchmarks", "steps", "--set", "model.hidden_size=none"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("ds-minimodel: model.hidden_size=none")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "part, arguments, keys",
    [
        ("kernels", ["--ops", "dropout", "--no-compiled"], ["op", "shape", "seconds"]),
        ("growth", ["--axes", "depth", "--points", "1", "--tokens", "128"], ["axis", "x", "fastest", "flops"]),
        ("stores", ["--gigabytes", "0.13", "0.26"], ["shards", "open_seconds", "sample_seconds"]),
        ("saves", ["--parameters", "1e4"], ["at_once", "background", "until_on_disk"]),
    ],
)
def test_a_part_adds_a_run_to_its_records(part, arguments, keys, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = {"facts": {"device": "another", "date": "2026-01-01"}, "rows": []}
    (tmp_path / f"{part}.jsonl").write_text(json.dumps(before) + "\n")
    code, rows, table = measured(tmp_path, part, *arguments)
    assert code == 0 and rows and all(row.keys() >= set(keys) for row in rows)
    assert runs_of(tmp_path, part)[0] == before and "## another, 2026-01-01" in table
    assert {path.name for path in tmp_path.iterdir()} == {f"{part}.jsonl", f"{part}.md"}, "nothing else is left"


def test_ways_to_another_language_cost_the_same(tmp_path):
    words = {"en": "the old boat sees a town", "de": "das alte Boot sieht eine Stadt"}
    for language, own in words.items():
        documents = [" ".join(random.Random(number).choices(own.split(), k=30)) for number in range(45)]
        (tmp_path / f"{language}.txt").write_text("\n\n".join(documents))
    small = ["tokenizer.vocab_size=270", "model.num_layers=4", "model.hidden_size=16", "model.ffn_size=32"]
    for section, steps in (("pretrain", 3), ("build_mini", 20), ("adapt", 40)):
        small += [f"{section}.steps={steps}", f"{section}.warmup_steps=1", f"{section}.seq_length=32"]
    code, rows, table = measured(tmp_path / "out", "decoders", "--text", str(tmp_path), "--set", *small)
    assert code == 0 and "| untied | 1 | pack, MiniPost, mapped on de |" in table
    for output in ("tied", "untied"):
        of = {(row["way"], row["steps"]): row for row in rows if row["output"] == output}
        unadapted, mini = of.pop(("unadapted", 0)), of["pack, MiniPost", 40]
        del of["pack, BL_BASE", 40]
        assert all(row["flops"] == pytest.approx(mini["flops"], rel=0.05) for row in of.values())
        assert all(row["de"] < unadapted["de"] for row in of.values())
        assert all((row["en"] == unadapted["en"]) == way.startswith("pack") for (way, _), row in of.items())
