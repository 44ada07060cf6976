"""Counter-based randomness: the hash, the keys, and permutations without memory."""

import numpy as np
import pytest

from ds_minimodel.common import random
from tests.helpers.references import plain_hash32


def test_sample_key_equals_the_plain_definition():
    def plain_key(seed, epoch, index):
        epoch_key = plain_hash32(plain_hash32(seed + random.GOLDEN) + epoch)
        key = plain_hash32(epoch_key + (index & 0xFFFFFFFF))
        return plain_hash32(key + (index >> 32)) if index >> 32 else key

    indices = [0, 1, 77, 2**32 - 1, 2**32, 2**40 + 3]
    for seed, epoch in [(1, 0), (2**32 - 1, 5), (0, 2**31)]:
        expected = [plain_key(seed, epoch, index) for index in indices]
        assert random.sample_key(seed, epoch, indices).tolist() == expected


def test_draws_do_not_depend_on_where_one_starts():
    keys = random.stream_key(random.sample_key(1, 0, np.arange(5)), 7)
    whole = random.draws(keys, 0, 20)
    assert (random.draws(keys, 8, 5) == whole[:, 8:13]).all()
    assert (random.draws(keys[2:3], 0, 20) == whole[2:3]).all()


def test_draws_are_uniform_and_independent_of_each_other():
    keys = random.sample_key(1, 0, np.arange(2000))
    bits = random.draws(random.stream_key(keys, 3), 0, 100)
    values = random.uniform(bits)
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.003  # 5 standard errors of 200,000 draws
    counts = np.bincount(random.uniform_below(bits, 10).ravel(), minlength=10)
    assert (abs(counts - 20_000) < 5 * np.sqrt(18_000)).all()
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.12
    others = random.uniform(random.draws(random.stream_key(keys, 4), 0, 100))
    assert abs(np.corrcoef(values.ravel(), others.ravel())[0, 1]) < 0.012


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 31, 32, 33, 1000, 65536, 65537])
def test_permutation_is_a_bijection(n):
    for epoch in range(3):
        permuted = random.permute(np.arange(n), n, seed=9, epoch=epoch)
        assert np.array_equal(np.sort(permuted), np.arange(n))


def test_permutation_of_more_than_32_bits():
    n = 2**33 + 5
    index = np.concatenate([np.arange(1000), n - 1 - np.arange(1000)])
    permuted = random.permute(index, n, seed=1, epoch=0)
    assert len(set(permuted.tolist())) == 2000
    assert permuted.min() >= 0
    assert 2**32 < permuted.max() < n


def test_permutation_changes_with_seed_and_epoch_and_is_well_mixed():
    index = np.arange(10_000)
    first = random.permute(index, 10_000, seed=1, epoch=0)
    next_epoch = random.permute(index, 10_000, seed=1, epoch=1)
    other_seed = random.permute(index, 10_000, seed=2, epoch=0)
    for order in (first, next_epoch, other_seed):
        assert (order == index).sum() < 12  # about one fixed point
        assert abs(np.corrcoef(order, index)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert (first == next_epoch).sum() < 12
    assert (first == other_seed).sum() < 12


@pytest.mark.parametrize("layers, heads", [(1, 1), (3, 2), (24, 16), (96, 96)])
def test_no_two_dropouts_and_streams_share_a_number(layers, heads):
    sites = random.DropoutSites(layers, heads)
    numbers = [sites.embeddings, *sites.task_head]
    for index in range(layers):
        layer = sites.layer(index)
        assert len(layer.heads) == heads
        numbers += [*layer.heads, layer.attention_out, layer.ffn_out]
    # Each number is there once, without a gap; of an enum's equal members one would be an alias.
    assert sorted(numbers) == list(range(1 + layers * (heads + 2) + 2))
    assert max(numbers) < random.FIRST_STREAM <= min(random.Stream)
    assert len(random.Stream) == len(random.Stream.__members__)
    keys = {int(random.stream_key(12345, number)) for number in [*numbers, *random.Stream]}
    assert len(keys) == len(numbers) + len(random.Stream)


def test_a_network_with_more_dropouts_than_numbers_does_not_fit():
    assert random.DropoutSites.fit(255, 254)
    assert not random.DropoutSites.fit(256, 254)
