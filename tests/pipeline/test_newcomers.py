"""A kind of body and an objective are one declaration each: newcomers.py has both, and nothing else knows them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from ds_minimodel.engine.ranks.launch import CPU

from .conftest import ROOT, make_world, stop_when

NEWCOMERS = Path(__file__).parent / "newcomers.py"
OVERRIDES = (
    "model.kind=toy",
    "systems=[bl_base, minipost]",
    "adapt.depth_schedule=[]",
    "finetune.seeds=1",
    "data.held_out=0.1",
)
ENVIRONMENT = {**os.environ, **CPU, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(*arguments):
    """`ds-minimodel ARGUMENTS` where there are the newcomers, in the background."""
    command = [sys.executable, NEWCOMERS, *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def newcomers(*arguments, code=0):
    """Standard output of the same, once it has ended with the exit code `code`; else standard error."""
    process = start(*arguments)
    out, err = process.communicate(timeout=280)
    assert process.returncode == code, err
    return err if code else out


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Workdir of a run to a report."""
    recipe = make_world(tmp_path_factory.mktemp("newcomers"))
    newcomers("run", recipe, *OVERRIDES)
    return recipe.parent / "run"


def artifacts(workdir):
    return {str(path.relative_to(workdir)): load_file(path) for path in sorted(workdir.rglob("*.safetensors"))}


def test_costs_plan_and_doctor_read_the_declaration(tmp_path):
    recipe = make_world(tmp_path)
    rows = {row["step"]: row for row in json.loads(newcomers("flops", recipe, *OVERRIDES, "--json"))["rows"]}
    roberta = newcomers("flops", recipe, *OVERRIDES[1:], "--json")
    assert rows["adapt"] != {row["step"]: row for row in json.loads(roberta)["rows"]}["adapt"]  # no dense head
    for text in (newcomers("plan", recipe, *OVERRIDES), newcomers("doctor")):
        assert "root-mean-square norm, ReLU" in text


def test_they_train_to_a_report(workdir):
    config = json.loads((workdir / "pretrain/bl_base/body/config.json").read_text())
    assert (config["architecture"]["kind"], config["objective"]) == ("toy", "unswap")
    first, *lines = map(json.loads, (workdir / "pretrain/bl_base/run/metrics.jsonl").read_text().splitlines())
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["held_out/nats_per_token"] < first["held_out/nats_per_token"]
    assert lines[-1]["held_out/bits_per_byte"] < first["held_out/bits_per_byte"]
    rows = json.loads((workdir / "report/scores.json").read_text())
    assert {(row["system"], row["task"], row["step"]) for row in rows} == {
        (system, task, step) for system in ("bl_base", "minipost") for task in ("topic", "qa") for step in (0, 4, 8)
    }


def test_a_killed_run_goes_on_with_the_same_bits(workdir, tmp_path):
    recipe = make_world(tmp_path)
    for step in ("tokenizer", "prepare"):
        newcomers(step, recipe, *OVERRIDES)
    checkpoints = tmp_path / "run/pretrain/bl_base/run/checkpoints"
    stop_when(start("pretrain", recipe, *OVERRIDES), lambda: len([*checkpoints.glob("step-*")]) > 1, signal.SIGKILL)
    newcomers("pretrain", recipe, *OVERRIDES)
    whole, found = (
        load_file(folder / "pretrain/bl_base/body/model.safetensors") for folder in (workdir, tmp_path / "run")
    )
    assert all(found[name].equal(tensor) for name, tensor in whole.items())


def test_two_ranks_that_hold_one_replica_train_the_same(workdir, start_ranks, tmp_path):
    recipe = make_world(tmp_path)
    for step in ("tokenizer", "prepare"):
        newcomers(step, recipe, *OVERRIDES)
    process = start_ranks(
        2, NEWCOMERS, "ranks", recipe, *OVERRIDES, "engine.tensor_parallel=2", stderr=subprocess.PIPE, text=True
    )
    errors = process.communicate(timeout=280)[1]
    assert process.returncode == 0, errors[-5000:]
    whole, found = artifacts(workdir), artifacts(tmp_path / "run")
    assert found.keys() == whole.keys()
    for file, tensors in whole.items():
        for name, tensor in tensors.items():
            assert_close(
                found[file][name], tensor, rtol=0, atol=2e-4, msg=lambda text, at=f"{file} {name}": f"{at}: {text}"
            )


def test_a_library_that_does_not_have_the_kind_gets_no_export(workdir, tmp_path):
    error = newcomers("export-hf", workdir / "pretrain/bl_base/body", tmp_path / "out", code=2)
    assert error.count("\n") == 1 and "has no bodies of kind toy" in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "override, said",
    [
        ("model.kind=gpt", "model.kind=gpt: Input should be 'roberta', 'bert', 'modernbert' or 'toy'"),
        ("objective=guess", "objective=guess: Input should be 'masked-lm' or 'unswap'"),
        ("adapt.train_positions=true", "adapt.train_positions: a body of kind toy has none; leave the key out"),
        ("adapt.mask_prob=0.3", "adapt.mask_prob=0.3: unknown key"),
        ("model.longest_wave=x", "model.longest_wave=x: Input should be a valid number"),
    ],
)
def test_what_is_no_key_of_theirs_is_refused(tmp_path, override, said):
    assert said in newcomers("flops", make_world(tmp_path), *OVERRIDES, override, code=2)
