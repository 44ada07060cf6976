"""Embedding models on ranks, at ZeRO stages, in micro-batches, over a mini-model and with a LoRA:
the same losses, and nothing else trains.
"""

import shutil

import pytest
import torch

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_body, load_model
from tests.helpers.files import read_json_lines

from ..forks import done
from .conftest import run_two_ranks
from .sentence_world import make_sentence_world

pytestmark = pytest.mark.slow

WAYS = {
    "micro-batches of 1": (1, "engine.micro_batch_size=1"),
    "whole batches": (1, "engine.micro_batch_size=8"),
    "two ranks": (2, "engine.zero_stage=1"),
    "ZeRO 0": (2, "engine.zero_stage=0"),
    "ZeRO 2": (2, "engine.zero_stage=2"),
    "ZeRO 3": (2, "engine.zero_stage=3", "engine.micro_batch_size=2"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder whose recipe has done all but step 2."""
    folder = tmp_path_factory.mktemp("ranks")
    recipe = make_sentence_world(folder)
    for step in ("corpus", "tokenizer", "prepare", "pretrain"):
        done(step, recipe)
    return folder


def adapted(made, system="bl_base", ranks=1, *overrides):
    """(losses of the steps, pack) of step 2 in a copy of the workdir."""
    shutil.rmtree(made / "copy", ignore_errors=True)
    shutil.copytree(made / "run", made / "copy")
    options = [f"workdir={made}/copy", f"systems=[{system}]", "finetune.tasks={}", *overrides]
    if ranks == 1:
        done("adapt", made / "recipe.yaml", *options)
    else:
        run_two_ranks(made / "recipe.yaml", *options)
    folder = made / "copy/adapt" / system / "xx"
    rows = read_json_lines(folder / "run/metrics.jsonl")
    return [row["loss"] for row in rows], load_adaptation(folder / "pack")


@pytest.fixture(scope="module")
def expected(made):
    return adapted(made)


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_rows_do_not_depend_on_how_the_work_is_split(way, made, expected):
    losses, pack = adapted(made, "bl_base", *WAYS[way])
    assert losses == pytest.approx(expected[0], abs=1e-6)
    rows = pack.embeddings["tokens"]
    others = expected[1].embeddings["tokens"]
    assert (rows - others).abs().max() < 1e-4


@pytest.mark.parametrize("overrides", [(), ("engine.zero_stage=3",)], ids=str)
def test_a_mini_model_trains_its_new_layers_alone_and_then_new_rows(overrides, made):
    losses, pack = adapted(made, "minipost", 2, *overrides)
    body, _ = load_model(made / "copy/pretrain/bl_base/model")
    mini = load_body(made / "copy/build-mini/minipost/mini")
    assert mini.config.num_layers == 2
    assert mini.config.head == body.config.head
    for name, tensor in mini.tensors.items():
        is_new = name.startswith("layers.1.")
        assert is_new or torch.equal(tensor, body.tensors[name]), name
    assert not pack.update
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("system", ["lora", "full"])
def test_the_body_trains_beside_the_rows_where_it_is_to(system, made):
    losses, pack = adapted(made, system)
    assert pack.update
    assert losses[-1] < losses[0]
