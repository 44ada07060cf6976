"""What benchmarks measure, and the records kept; test_parts.py measures."""

from pathlib import Path

import pytest

from benchmarks.__main__ import HERE, PARTS
from benchmarks.record import INDEX, index, page, runs_of
from benchmarks.training import hugging_face
from benchmarks.workloads import STEPS, our_module, workload
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.models.low_rank import low_rank_size
from tests.benchmarks.conftest import TINY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LLAMA = (
    "pretrain={} build_mini={} adapt={}".split()
)  # without the paper's for masked language modelling


def trained(module):
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and "token_type" not in name
    )


ALIKE = [("roberta", step) for step in STEPS if not step.endswith("-lora")]


@pytest.mark.parametrize("kind, step", [*ALIKE, ("modernbert", "adapt-mini")])
def test_the_peer_trains_what_we_train(kind, step):
    recipe = load_recipe("paper", [f"model.kind={kind}", *TINY])
    work = workload(recipe, step, 32, 16)
    ours = our_module(work, recipe)
    theirs = hugging_face(work, recipe, "sdpa")
    assert 0 < trained(ours) == trained(theirs)


@pytest.mark.parametrize("step", ["adapt-lora", "extend-lora"])
def test_peft_trains_what_we_train_but_for_matrices_that_it_has_apart(step):
    recipe = load_recipe("paper", ["model={kind: llama, num_kv_heads: 2}", *LLAMA, *TINY])
    work = workload(recipe, step, 32, 16)
    ours = our_module(work, recipe)
    theirs = hugging_face(work, recipe, "sdpa")
    # Of three layers it has an A more for two of q, k and v, and for one of gate and up.
    assert trained(theirs) - 3 * (2 + 1) * work.rank * 32 == trained(ours)
    assert trained(ours) == (work.vocab_size - work.num_base) * 32 + low_rank_size(
        work.body, work.rank
    )


@pytest.mark.parametrize("name", PARTS)
def test_the_kept_page_is_that_of_the_records(name):
    assert (HERE / f"{name}.md").read_text() == page(PARTS[name], runs_of(HERE, name))


def test_the_index_lists_every_record():
    assert (HERE / INDEX).read_text() == index(HERE, PARTS)
    assert {path.stem for path in HERE.glob("*.jsonl")} == set(PARTS)
