"""Every step on two ranks that hold one replica between them writes what one process does, within
rounding.
"""

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.helpers.files import read_json

from ..forks import done
from .conftest import make_world, prepare, run_two_ranks

pytestmark = pytest.mark.slow

OVERRIDES = ("systems=[minipost]", "finetune.seeds=1")
# ModernBERT: gated feed-forward blocks, windows, a prediction head that tasks read, no biases. Qwen
# 2: next tokens, grouped heads, an output matrix of its own.
LETTERS = "tokenizer.vocab_size=300", "finetune.tasks={}"
MODERN = {
    "modernbert": ("model.window=4",),
    "qwen2": ("model.num_heads=4", "model.num_kv_heads=2", "model.tie_output=false", *LETTERS),
}


def split_run(folder, *overrides):
    """Workdir of a run on two ranks."""
    return run_two_ranks(
        prepare(make_world(folder), *overrides), *overrides, "engine.tensor_parallel=2"
    )


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return split_run(tmp_path_factory.mktemp("split"), *OVERRIDES)


def artifacts(workdir):
    """Every file of weights of what `split` makes, by its path."""
    return {
        str(path.relative_to(workdir)): load_file(path)
        for path in sorted(workdir.rglob("*.safetensors"))
        if {"minipost", "bl_base"} & set(path.parts)
        and "seed-4" not in path.parts
        and path.relative_to(workdir).parts[:2] != ("adapt", "bl_base")
    }


def test_artifacts_are_those_of_one_process(world, split):
    whole = artifacts(world.parent / "run")
    found = artifacts(split)
    assert len(whole) == 7
    assert_same_but_for_rounding(found, whole)


@pytest.mark.parametrize("kind", MODERN)
@pytest.mark.long
def test_bodies_of_today_are_split_as_well(kind, tmp_path):
    for name in ("whole", "split"):
        (tmp_path / name).mkdir()
    overrides = (f"model.kind={kind}", *MODERN[kind], "systems=[minipost]", "finetune.seeds=1")
    done("run", make_world(tmp_path / "whole"), *overrides)
    found = artifacts(split_run(tmp_path / "split", *overrides))
    assert_same_but_for_rounding(found, artifacts(tmp_path / "whole/run"))


def assert_same_but_for_rounding(found, whole):
    """Weights of two runs by file."""
    assert found.keys() == whole.keys()
    for file, tensors in whole.items():
        assert found[file].keys() == tensors.keys(), file
        for name, tensor in tensors.items():
            message = f"{file} {name}: {{}}".format
            assert_close(found[file][name], tensor, rtol=0, atol=2e-4, msg=message)


@pytest.mark.parametrize("task", ["topic", "qa"])
def test_scores_are_those_of_one_process(world, split, task):
    """But for a decision or two that rounding turns."""
    scores = f"evaluate/minipost/xx/{task}/seed-3/scores.json"
    expected = read_json(world.parent / "run" / scores)
    found = read_json(split / scores)
    assert [{**row, "score": None} for row in found] == [{**row, "score": None} for row in expected]
    assert [row["score"] for row in found] == pytest.approx(
        [row["score"] for row in expected], abs=4
    )
