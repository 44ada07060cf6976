"""The bits of dropout: the ones of the specification, whoever computes them."""

import numpy as np
import torch
from op_cases import row_keys_of

from ds_minimodel import ops
from ds_minimodel.common import random
from tests.helpers.references import plain_hash32

GOLDEN = 0x9E3779B9


def unsigned(tensor):
    return [int(value) & 0xFFFFFFFF for value in tensor.flatten()]


def test_row_keys_follow_the_specification():
    samples = row_keys_of(3)
    positions = torch.tensor([0, 1, 511])
    expected = [
        plain_hash32(plain_hash32(sample + 40 * GOLDEN & 0xFFFFFFFF) + position & 0xFFFFFFFF)
        for sample in unsigned(samples)
        for position in positions.tolist()
    ]
    assert unsigned(ops.row_keys(samples, 40, positions)) == expected
    by_sample = positions.expand(3, 3)
    assert ops.row_keys(samples, 40, by_sample).equal(ops.row_keys(samples, 40, positions))
    by_head = ops.row_keys(samples, range(38, 42), by_sample)
    assert by_head.shape == (3, 4, 3)
    assert by_head[:, 2].equal(ops.row_keys(samples, 40, positions))


def test_dropout_sites_and_streams_share_one_numbering():
    """So a site and a stream of other numbers (common/random.py) never give the same key."""
    samples = row_keys_of(3)
    stream_keys = random.stream_key(samples.numpy().view(np.uint32), 40)
    keys = random.hash32(stream_keys + np.uint32(7))
    assert unsigned(ops.row_keys(samples, 40, torch.tensor([7]))) == keys.tolist()


def test_elements_are_dropped_by_the_specification():
    keys = row_keys_of(8)
    p = 0.3
    kept = ops.dropout(torch.ones(8, 50), p, keys) != 0
    threshold = int(p * 2**32)
    expected = [
        [plain_hash32(key + (j + 1) * GOLDEN & 0xFFFFFFFF) >= threshold for j in range(50)]
        for key in unsigned(keys)
    ]
    assert np.array_equal(kept.numpy(), expected)


def test_identity_without_keys_or_rate():
    x = torch.randn(3, 4)
    assert ops.dropout(x, 0.1, None) is x
    assert ops.dropout(x, 0.0, row_keys_of(3)) is x
