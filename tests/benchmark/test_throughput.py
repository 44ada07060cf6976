"""The benchmark end to end at a tiny size: what it records, what peers train, what a failure leaves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel.benchmark import STEPS
from ds_minimodel.benchmark.contestants import hugging_face
from ds_minimodel.benchmark.rounds import Failed, time_in_turns
from ds_minimodel.benchmark.workloads import our_module, workload
from ds_minimodel.recipe.reading import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes/paper.yaml"
TINY = [
    "model.hidden_size=32",
    "model.num_heads=2",
    "model.ffn_size=64",
    "tokenizer.vocab_size=100",
    "model.num_layers=3",
    "mini.depth=1",
    "mini.new_layers=1",
]


def throughput(out, *arguments):
    command = [
        sys.executable,
        str(ROOT / "scripts/throughput.py"),
        str(RECIPE),
        *TINY,
        "--tokens",
        "32",
        "--seq-length",
        "16",
        "--repeats",
        "1",
        "--no-compiled",
        "--out",
        str(out),
        *arguments,
    ]
    ended = subprocess.run(command, capture_output=True, text=True)
    return ended.returncode, json.loads((out / "throughput.json").read_text()), ended


def trained(module):
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and "token_type" not in name
    )


@pytest.mark.parametrize("step", STEPS)
def test_the_peer_trains_what_we_train(step):
    recipe = load_recipe(RECIPE, TINY)
    work = workload(recipe, step, 32, 16)
    ours, theirs = our_module(work, recipe), hugging_face(work, recipe, "sdpa")
    assert 0 < trained(ours) == trained(theirs)


def test_two_ranks_against_hugging_face(tmp_path):
    code, record, ended = throughput(
        tmp_path, "--steps", "adapt-mini", "--against", "hf", "--ranks", "2", "--kernels", "dropout"
    )
    assert code == 0, ended.stderr
    (row,) = record["steps"]
    ours, theirs = row["contestants"]["ds_minimodel"], row["contestants"]["hf"]
    assert ours["tokens_per_second"] == pytest.approx(2 * 32 / ours["seconds"])
    assert theirs["tokens_per_second"] == pytest.approx(32 / theirs["seconds"])
    # ZeRO 1 with two ranks: an all-reduce of the gradients (twice a half) and an all-gather of the weights (a half).
    assert ours["wire_bytes"] == pytest.approx(1.5 * 4 * 100 * 33, rel=0.05)
    assert theirs["wire_bytes"] == 0
    assert {len(row["seconds"]) for row in record["kernels"]} == {2}
    assert record["circumstances"]["commit"] and not record["failures"]
    page = (tmp_path / "throughput.md").read_text()
    assert (
        "| adapt-mini, 1 layers | fp32, ZeRO 1, 2 ranks | **ds_minimodel** |" in page
        and (tmp_path / "throughput.png").stat().st_size > 1000
    )


def test_a_device_that_cannot_be_measured_is_a_failure_with_a_reason(tmp_path):
    task = {"workload": "adapt-mini", "precision": "fp64", "threads": 1, "clock": "wall"}
    with pytest.raises(Failed, match="peaks: KeyError: 'fp64'"):
        time_in_turns([], task, 1, 2, tmp_path, 60, print)


def test_a_contestant_that_fails_does_not_take_the_others_along(tmp_path, monkeypatch):
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "transformers.py").write_text("raise ImportError('broken on purpose')")
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=":")
    code, record, _ = throughput(tmp_path, "--steps", "finetune", "--against", "hf", "--kernels")
    assert code == 1
    contestants = record["steps"][0]["contestants"]
    assert contestants["ds_minimodel"]["seconds"] > 0
    assert "broken on purpose" in contestants["hf"]["error"]
    assert list(record["failures"]) == ["finetune fp32 ZeRO 1 hf"]
    assert "broken on purpose" in (tmp_path / "throughput.md").read_text()
