"""Attention against torch's own; and what rows without keys give."""

import pytest
import torch
import torch.nn.functional as F
from op_cases import packed

from ds_minimodel import ops


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_equals_scaled_dot_product_attention(dtype, tolerance):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 40, 16, dtype=dtype)
    lengths = torch.tensor([40, 23], dtype=torch.int32)
    mask = (torch.arange(40) < lengths[:, None])[:, None, None, :]
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(
        ops.attention(packed(q, k, v), 3, lengths), packed(expected), atol=tolerance, rtol=tolerance
    )
    expected = F.scaled_dot_product_attention(q[:, :, :5], k, v)
    got = ops.attention(packed(k, v), 3, None, queries=packed(q[:, :, :5]))
    torch.testing.assert_close(got, packed(expected), atol=tolerance, rtol=tolerance)


def test_a_sample_without_keys_attends_to_nothing():
    probs = ops.masked_softmax(torch.randn(2, 1, 3, 5), torch.tensor([0, 2], dtype=torch.int32), 1.0)
    assert (probs[0] == 0).all() and (probs[1, ..., 2:] == 0).all()
    torch.testing.assert_close(probs[1].sum(-1), torch.ones(1, 3))


def test_nan_is_not_hidden():
    scores = torch.zeros(1, 1, 1, 40)
    scores[..., 3] = torch.nan
    assert ops.masked_softmax(scores, None, 1.0).isnan().all()
