"""`extend` on several ranks: what is trained does not depend on how many there are, nor on what
each of them holds.
"""

import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from ds_minimodel.cli.main import main
from ds_minimodel.training import partition
from tests.helpers.files import read_json, read_json_lines

from ..forks import done, kill_after, run_ranks, start
from ..pipeline.conftest import make_llama_world, stop_when

pytestmark = pytest.mark.long

STEPS = "run/adapt/lora/xx/run/metrics.jsonl"
MEMORY = 1
SAME = ["adapt.batch_size=12", "engine.micro_batch_size=2"]


def train(memory, *arguments):
    """A rank of a host that has so many bytes."""
    partition.machine_memory = lambda: memory
    main([*arguments])


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with an `extend` in `one`, which has run to its end."""
    folder = tmp_path_factory.mktemp("ranks")
    make_llama_world(folder)
    done(begin(folder, "one"))
    return folder


def begin(folder, out):
    """A call of `extend` whose recipe is chosen, and trains in fp32."""
    call = f"extend {folder}/theirs {folder}/xx.txt --language xx --out {folder}/{out}"
    call += " --tokens 20k --vocab-size 20 --train lora"
    kill_after("recipe.yaml", call)
    recipe = folder / out / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("engine:", "engine:\n  precision: fp32"))
    return call


def losses(out):
    rows = read_json_lines(out / STEPS)
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def test_losses_are_the_same_on_any_number_of_ranks(begun, tmp_path):
    """At ZeRO 3, too, where no rank holds the frozen weights: each is read when it is cut."""
    found = []
    for ranks, stage in ((1, 0), (2, 0), (3, 0), (2, 3)):
        out = tmp_path / f"{ranks} {stage}"
        shutil.copytree(begun / "one/run", out / "run", ignore=shutil.ignore_patterns("adapt*"))
        settings = [*SAME, f"workdir={out}/run", f"engine.zero_stage={stage}", "adapt.steps=5"]
        call = "adapt", str(begun / "one/recipe.yaml"), *settings
        codes, errors = run_ranks(ranks, f"{__name__}:train", MEMORY, *call)
        assert not any(codes), errors
        found.append(losses(out))
        placed = read_json((out / STEPS).with_name("run.json"))["partition"]
        assert placed["frozen_whole"] == (0 if stage else placed["frozen"])
    assert len(found[0]), found
    assert all(other == pytest.approx(found[0], rel=1e-5) for other in found[1:]), found


def test_what_was_interrupted_goes_on_on_other_ranks(begun):
    metrics = begun / "two" / STEPS
    call = begin(begun, "two")
    _, err = stop_when(
        start(call), lambda: metrics.exists() and metrics.stat().st_size, signal.SIGINT
    )
    assert "stopped after step" in err, err
    assert not (begun / "two/model").exists(), err
    done(f"{call} --ranks 2")
    assert losses(begun / "two") == pytest.approx(losses(begun / "one"), rel=1e-5)
    ours = load_file(begun / "two/adapter/adapter_model.safetensors")
    theirs = load_file(begun / "one/adapter/adapter_model.safetensors")
    assert all(torch.allclose(tensor, theirs[name], atol=1e-4) for name, tensor in ours.items())
