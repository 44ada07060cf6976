"""Training batches are functions of (seed, sample number); evaluation meets every example."""

import itertools

import numpy as np
import pytest

from ds_minimodel.common.random import sample_key
from ds_minimodel.common.vocabulary import FILLER
from ds_minimodel.evaluation.batches import TaskSampler, inference_batches, join

N = 23


@pytest.fixture
def examples():
    """Example i is `<s>`, 2 + i % 7 times the token 100 + i, `</s>`; its target is i."""
    sequences = [np.array([0, *[100 + i] * (2 + i % 7), 2]) for i in range(N)]
    return join(sequences, np.arange(N), reads_start=True)


def who(batch):
    """Which example each row is."""
    return batch["tokens"][:, 1] - 100


def test_batch_form(examples):
    batch = examples.batch(np.array([3, 0]), sample_key(1, 0, [3, 0]))
    assert batch["tokens"].tolist() == [
        [0, 103, 103, 103, 103, 103, 2],
        [0, 100, 100, 2, *[FILLER] * 3],
    ]
    assert batch["lengths"].tolist() == [7, 4]
    assert batch["targets"].tolist() == [[3], [0]]
    assert batch["loss_positions"].tolist() == [[0], [0]]
    assert batch["count"] == 2
    assert batch["sample_keys"].view(np.uint32).tolist() == sample_key(1, 0, [3, 0]).tolist()
    types = dict.fromkeys(("tokens", "loss_positions", "targets", "token_index"), "int64")
    types |= dict.fromkeys(("lengths", "sample_keys"), "int32")
    assert {name: str(array.dtype) for name, array in batch.items() if name != "count"} == types
    assert batch["tokens"].flatten()[batch["token_index"]].tolist() == [
        0,
        103,
        103,
        103,
        103,
        103,
        2,
        0,
        100,
        100,
        2,
    ]
    assert "token_index" not in examples.batch(np.array([3, 10]), [0, 0])  # of equal length


def test_an_epoch_meets_each_example_once_and_fills_its_last_batch(examples):
    sampler = TaskSampler(examples, batch_size=8, seed=5)
    assert sampler.updates_per_epoch == 3
    orders = []
    for epoch in range(3):
        batches = [
            sampler.batch(first, first + 8) for first in range(24 * epoch, 24 * epoch + 24, 8)
        ]
        assert [batch["count"] for batch in batches] == [8, 8, 7]
        targets = np.concatenate([batch["targets"][:, 0] for batch in batches])
        assert targets[-1] == -100
        assert sorted(targets[:-1]) == list(range(N))
        for batch in batches:
            real = batch["targets"][:, 0] >= 0
            assert (who(batch) == batch["targets"][:, 0])[real].all()
            expected = sample_key(5, epoch, batch["targets"][real, 0])
            assert (batch["sample_keys"][real].view(np.uint32) == expected).all()
        orders.append(tuple(targets))
    assert len(set(orders)) == 3
    assert TaskSampler(examples, 8, seed=6).batch(0, 8)["targets"].tolist() != [
        [t] for t in orders[0][:8]
    ]


@pytest.mark.parametrize("cuts", [[0, 48], [0, 8, 16, 24, 32, 40, 48], [0, 5, 23, 24, 31, 47, 48]])
def test_any_split_gives_the_same_samples(examples, cuts):
    sampler = TaskSampler(examples, batch_size=8, seed=5)
    whole = sampler.batch(0, 48)
    parts = [sampler.batch(first, last) for first, last in itertools.pairwise(cuts)]
    for name in ("targets", "sample_keys", "lengths"):
        assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])
    assert np.array_equal(np.concatenate([who(part) for part in parts]), who(whole))
    assert sum(part["count"] for part in parts) == whole["count"] == 2 * N


@pytest.mark.parametrize("slots", [8, 9, 12, 16])
def test_slots_beyond_the_batch_change_nothing_but_fillers(examples, slots):
    plain = TaskSampler(examples, 8, seed=5)
    wide = TaskSampler(examples, 8, seed=5, slots=slots)
    assert wide.updates_per_epoch == 3
    for update in range(7):
        expected = plain.batch(8 * update, 8 * update + 8)
        rows = wide.batch(slots * update, slots * update + slots)
        for name in ("targets", "lengths", "sample_keys"):
            assert np.array_equal(rows[name][:8], expected[name])
        assert (rows["targets"][8:] == -100).all()
        assert rows["count"] == expected["count"]


@pytest.mark.parametrize("max_tokens", [1, 30, 10_000])
def test_evaluation_meets_each_example_once(examples, max_tokens):
    seen = []
    for index, batch in inference_batches(examples, max_tokens):
        assert np.array_equal(who(batch), index)
        assert np.array_equal(batch["targets"][:, 0], index)
        assert (np.diff(batch["lengths"]) <= 0).all()
        assert batch["tokens"].shape[1] == batch["lengths"][0]
        assert batch["tokens"].size <= max_tokens or len(index) == 1
        seen += index.tolist()
    assert sorted(seen) == list(range(N))
