"""Lines of an embedding model's training: what is stored of them, and in what order they come."""

import itertools

import numpy as np
import pytest
import torch

from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.data.store import TokenStore
from ds_minimodel.ops.parallel import SOLO, Group
from ds_minimodel.pipeline import lines
from ds_minimodel.pipeline.lines import (
    SOURCE,
    LineSampler,
    Targets,
    examples_of,
    part_of,
    together,
    write_sides,
    write_targets,
)
from ds_minimodel.text.pairs import Pair
from ds_minimodel.training.world import World

pytestmark = pytest.mark.slow

TEXTS = ["abc", "", "defghij", "k", "a" * 40]


class Letters:
    """A vocabulary of letters."""

    vocabulary = Vocabulary(200, bos=1, eos=2)
    sha256 = "0" * 64

    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def rows_of(examples):
    return [row.tolist() for row in np.split(examples.tokens, examples.bounds[1:-1])]


@pytest.mark.parametrize("shard_lines", [2, 100])
def test_a_store_gives_its_lines_back_in_their_places(shard_lines, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "SHARD_LINES", shard_lines)
    pairs = [Pair(text[::-1], text) for text in TEXTS]
    assert write_sides(tmp_path / "store", pairs, Letters(), Letters(), 99) == len(TEXTS)
    examples = examples_of(TokenStore(tmp_path / "store", verify=True), 12)
    others = examples_of(TokenStore(tmp_path / "store" / SOURCE, verify=True), 99)
    assert rows_of(others) == [[1, *map(ord, text[::-1]), 2] for text in TEXTS]
    expected = [[1, *map(ord, text[:10]), 2] for text in TEXTS]
    assert rows_of(examples) == expected
    assert examples.targets[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert rows_of(part_of(examples, 1, 3)) == expected[1:3]


def test_lines_of_which_the_model_does_not_read_all_are_left_out(tmp_path):
    pairs = [Pair("abc", "x" * 50), Pair("abcd", "y"), Pair("ab", "z")]
    assert write_sides(tmp_path / "store", pairs, Letters(), Letters(), 5) == 2
    examples = examples_of(TokenStore(tmp_path / "store"), 5)
    assert rows_of(examples) == [[1, *map(ord, "xxx"), 2], [1, ord("z"), 2]]


def test_a_prompt_stands_before_both_sides(tmp_path):
    pairs = [Pair("ab", "z")]
    write_sides(tmp_path / "store", pairs, Letters(), Letters(), 9, prompt="q: ")
    prompt = [1, *map(ord, "q: ")]
    assert rows_of(examples_of(TokenStore(tmp_path / "store"), 9)) == [[*prompt, ord("z"), 2]]
    others = examples_of(TokenStore(tmp_path / "store" / SOURCE), 9)
    assert rows_of(others) == [[*prompt, *map(ord, "ab"), 2]]


def some_lines(count, seed=0):
    """Lines of many lengths, each with a vector that says which it is."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 60, count)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    tokens = np.repeat(np.arange(count), sizes).astype(np.int32)
    examples = lines.Examples(tokens, bounds, np.arange(count)[:, None], reads_start=False)
    return examples, np.stack([np.arange(count), np.arange(count) * 0.5], 1).astype(np.float32)


def numbers(batch):
    """Which lines a batch has; each row of tokens says the same as its target."""
    of_targets = batch["targets"][:, 0].astype(int)
    assert (batch["tokens"][:, 0] == of_targets).all()
    assert (batch["targets"][:, 1] == of_targets * 0.5).all()
    return of_targets.tolist()


@pytest.mark.parametrize("count, batch_size", [(1000, 16), (1003, 16), (5, 8), (1, 4)])
def test_an_epoch_has_every_line(count, batch_size):
    sampler = LineSampler(*some_lines(count), batch_size, seed=3)
    slots = sampler.batches_per_epoch * batch_size
    for epoch in range(2):
        seen = numbers(sampler.batch(epoch * slots, (epoch + 1) * slots))
        assert {*seen} == {*range(count)}
        assert max(map(seen.count, seen)) <= -(-slots // count)


def test_epochs_and_seeds_have_their_own_orders():
    examples, targets = some_lines(200)
    first = LineSampler(examples, targets, 8, 1)
    other = LineSampler(examples, targets, 8, 2)
    orders = [
        numbers(sampler.batch(start, start + 200))
        for sampler in (first, other)
        for start in (0, 200)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert numbers(LineSampler(examples, targets, 8, 1).batch(0, 200)) == orders[0]


def test_any_slices_are_parts_of_one_order():
    sampler = LineSampler(*some_lines(100), 8, seed=1)
    whole = sampler.batch(0, 300)
    for step in (1, 4, 16):
        slices = [sampler.batch(start, min(start + step, 300)) for start in range(0, 300, step)]
        assert sum(map(numbers, slices), []) == numbers(whole)
        keys = np.concatenate([batch["sample_keys"] for batch in slices])
        assert (keys == whole["sample_keys"]).all()
        assert sum(batch["count"] for batch in slices) == 300


def test_a_share_of_samples_are_other_sides_with_the_same_targets():
    examples, targets = some_lines(500)
    others = lines.Examples(
        examples.tokens + 1000, examples.bounds, examples.targets, reads_start=False
    )
    sampler = LineSampler(examples, targets, 10, seed=1, others=others, share=0.3)
    batch = sampler.batch(0, 500)
    is_other = batch["tokens"][:, 0] >= 1000
    assert 0.2 < is_other.mean() < 0.4
    of_tokens = batch["tokens"][:, 0] - 1000 * is_other
    assert (of_tokens == batch["targets"][:, 0]).all()
    assert {*of_tokens.tolist()} == {*range(500)}
    again = np.concatenate(
        [sampler.batch(start, start + 5)["tokens"][:, 0] for start in range(0, 500, 5)]
    )
    assert (again == batch["tokens"][:, 0]).all()


def test_examples_stand_one_after_another():
    first = some_lines(3)[0]
    second = some_lines(4, seed=1)[0]
    assert rows_of(together(first, second)) == rows_of(first) + rows_of(second)


def test_batches_are_of_like_length_and_in_random_order():
    sampler = LineSampler(*some_lines(4096), 16, seed=1)
    batches = [sampler.batch(start, start + 16) for start in range(0, 4096, 16)]
    filled = sum(batch["lengths"].sum() for batch in batches)
    assert filled / sum(batch["tokens"].size for batch in batches) > 0.85  # 0.5 in any order
    widths = [batch["tokens"].shape[1] for batch in batches]
    rising = sum(one < other for one, other in itertools.pairwise(widths))
    assert 0.35 < rising / len(widths) < 0.65


ALONE = World(0, 1, torch.device("cpu"), None, Group(0, 1), SOLO)


def vectors(examples):
    """What a model makes of lines, which depends on their tokens alone."""
    return np.array([[row.sum(), len(row)] for row in rows_with_numbers(examples)], np.float32)


def rows_with_numbers(examples):
    return [examples.tokens[a:b] for a, b in itertools.pairwise(examples.bounds)]


def test_targets_go_on_after_a_kill_at_any_place(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_LINES", 16)
    examples, _ = some_lines(70)
    write_targets(tmp_path / "whole", examples, 2, vectors, ALONE)
    expected = (tmp_path / "whole/targets.bin").read_bytes()
    targets = Targets(tmp_path / "whole")
    assert (targets.whole() == vectors(examples)).all()
    assert (targets[np.array([69, 3, 3])] == vectors(examples)[[69, 3, 3]]).all()
    for written in (0, 3, 16 * 8, 16 * 8 + 5, len(expected)):
        folder = tmp_path / f"killed-{written}"
        folder.mkdir()
        (folder / "targets.bin").write_bytes(expected[:written])
        computed = []

        def noted(part, computed=computed):
            computed.append(len(part))
            return vectors(part)

        write_targets(folder, examples, 2, noted, ALONE)
        assert (folder / "targets.bin").read_bytes() == expected
        assert sum(computed) == 70 - written // (16 * 8) * 16
