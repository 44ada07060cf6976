"""linear_cross_entropy against torch's cross_entropy over full logits."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops import cross_entropy

P, H, V = 50, 24, 300


def tensors(dtype):
    torch.manual_seed(0)
    targets = torch.randint(0, V, (P,))
    targets[[4, 17]] = IGNORED
    return [torch.randn(*shape, dtype=dtype) for shape in ((P, H), (V, H), (V,))], targets


@pytest.mark.parametrize("chunk_rows", [64, 16])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_equals_cross_entropy_of_full_logits(dtype, tolerance, chunk_rows, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", chunk_rows)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS_BF16", chunk_rows)
    values, targets = tensors(dtype)
    leaves = [value.clone().requires_grad_() for value in values]
    exact = [value.double().requires_grad_() for value in values]
    loss = ops.linear_cross_entropy(*leaves, targets)
    (loss / P).backward()
    expected = F.cross_entropy(exact[0] @ exact[1].T + exact[2], targets, reduction="sum", ignore_index=IGNORED)
    (expected / P).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    for leaf, twin in zip(leaves, exact):
        assert (leaf.grad - twin.grad).abs().max() <= tolerance * twin.grad.abs().max()


@pytest.mark.parametrize("chunk_rows", [64, 16])
def test_gradients_only_where_required(chunk_rows, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", chunk_rows)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS_BF16", chunk_rows)
    (x, weight, bias), targets = tensors(torch.float32)
    x.requires_grad_()
    ops.linear_cross_entropy(x, weight, bias, targets).backward()
    assert x.grad is not None and weight.grad is None and bias.grad is None
    with torch.no_grad():
        assert not ops.linear_cross_entropy(x, weight, bias, targets).requires_grad


def test_a_target_outside_the_vocabulary_is_refused():
    (x, weight, bias), targets = tensors(torch.float32)
    targets[3] = V
    with pytest.raises(RuntimeError, match="out of bounds"):
        ops.linear_cross_entropy(x, weight, bias, targets)


def test_the_kernels_ignore_the_same_target():
    arguments = Path(__file__).parents[2] / "csrc/arguments.h"
    assert int(re.search(r"kIgnored = (-?\d+);", arguments.read_text())[1]) == IGNORED
