"""What benchmarks measure, and the records kept; test_parts.py measures."""

import signal
import sys
from pathlib import Path

import pytest

from benchmarks import device
from benchmarks.__main__ import HERE, PARTS, parse
from benchmarks.processes import Contestant, Failed
from benchmarks.record import INDEX, index, page, runs_of
from benchmarks.stores import SHARD_TOKENS, sparse_store
from benchmarks.training import hugging_face, their_batch
from benchmarks.workloads import STEPS, make_batch, our_module, workload
from ds_minimodel.common.errors import UserError
from ds_minimodel.data.store import TokenStore
from ds_minimodel.models.low_rank import low_rank_size
from ds_minimodel.recipe.reading import load_recipe

ROOT = Path(__file__).parents[2]
TINY = "model.hidden_size=32 model.num_heads=2 model.ffn_size=64 model.num_layers=3".split()
TINY += "tokenizer.vocab_size=100 mini.depth=1 mini.new_layers=1".split()


def trained(module):
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and "token_type" not in name
    )


ALIKE = [("roberta", step) for step in STEPS if step != "adapt-lora"]


@pytest.mark.parametrize("kind, step", [*ALIKE, ("modernbert", "adapt-mini")])
def test_the_peer_trains_what_we_train(kind, step):
    recipe = load_recipe("paper", [f"model.kind={kind}", *TINY])
    work = workload(recipe, step, 32, 16)
    ours, theirs = our_module(work, recipe), hugging_face(work, recipe, "sdpa")
    assert 0 < trained(ours) == trained(theirs)


def test_peft_trains_what_we_train_but_for_matrices_that_it_has_apart():
    sizes = ["model={kind: llama, num_kv_heads: 2}", "pretrain={}", "build_mini={}", "adapt={}", *TINY]
    recipe = load_recipe("paper", sizes)
    work = workload(recipe, "adapt-lora", 32, 16)
    ours, theirs = our_module(work, recipe), hugging_face(work, recipe, "sdpa")
    shared = 3 * (2 + 1) * work.rank * 32  # A of q, k and v, and of gate and up, in each of three layers
    assert trained(ours) + shared == trained(theirs)
    assert trained(ours) == work.vocab_size * 32 + low_rank_size(work.body, work.rank)


def test_rows_of_several_lengths_are_packed_by_us_and_masked_for_the_peer():
    work = workload(load_recipe("paper", TINY), "finetune", 40, 16, shortest=4)
    batch = make_batch(work, 0)
    theirs = their_batch(batch, finetune=True)
    assert work.lengths == [4, 8, 12, 16] == batch["lengths"].tolist() == theirs["attention_mask"].sum(1).tolist()
    assert work.tokens == 40 == len(batch["token_index"])


def test_a_call_that_fails_in_a_process_has_a_reason():
    with Contestant("peaks") as contestant, pytest.raises(Failed, match="peaks: KeyError: 'fp64'"):
        contestant.ask(device.peaks, precision="fp64", clock="wall")


@pytest.mark.parametrize(
    "limit, number, why",
    [(60, signal.SIGKILL, r"ended by SIGKILL \(out of memory\?\)"), (0, 0, "no answer within 0 s")],
)
def test_a_process_that_is_killed_or_silent_has_a_reason(limit, number, why):
    with Contestant("peaks", time_limit=limit) as contestant:
        (process,) = contestant.processes
        if number:
            process.send_signal(number)
        with pytest.raises(Failed, match=f"peaks: {why}"):
            contestant.ask(device.peaks, precision="fp32", clock="wall")


def test_that_transformers_is_missing_is_said_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"^transformers is not installed; pip install 'ds_minimodel\[benchmark\]'"):
        next(PARTS["steps"].measure(parse(["steps", "--against", "reference", "hf"])))


def test_a_sparse_store_is_a_store_that_takes_no_place(tmp_path):
    shards = sparse_store(tmp_path / "store", 0.3, 50_000)
    store = TokenStore(tmp_path / "store")
    assert store.num_tokens == shards * SHARD_TOKENS
    assert not store.read(store.num_tokens - 512, store.num_tokens).any()
    assert store.document(store.num_documents - 1)[1] == store.num_tokens
    used = sum(512 * path.stat().st_blocks for path in (tmp_path / "store").iterdir())
    assert used < 0.01 * sum(path.stat().st_size for path in (tmp_path / "store").iterdir())


@pytest.mark.parametrize("name", PARTS)
def test_the_kept_page_is_that_of_the_records(name):
    assert (HERE / f"{name}.md").read_text() == page(PARTS[name], runs_of(HERE, name))


def test_the_index_lists_every_record():
    assert (HERE / INDEX).read_text() == index(HERE, PARTS)
    assert {path.stem for path in HERE.glob("*.jsonl")} == set(PARTS)
