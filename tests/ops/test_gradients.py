"""Gradients of the torch references, against finite differences in double precision."""

import pytest
import torch
from op_cases import P, row_keys_of
from torch.autograd import gradcheck

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops import cross_entropy
from ds_minimodel.ops.attention import around_softmax, fused_attention
from ds_minimodel.ops.gated import ACTIVATIONS

B, N, S, H = 2, 3, 5, 7


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_dropout():
    row_keys = row_keys_of(B, S)
    assert gradcheck(lambda x: ops.dropout(x, P, row_keys), leaf(B, S, H))


@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("rms", [True, False])
def test_residual_norm(residual, dropped, frozen, rms):
    weight, bias = leaf(H).requires_grad_(not frozen), leaf(H).requires_grad_(not frozen)
    options = (P, row_keys_of(B, S)) if dropped else (0.0, None)
    other = leaf(B, S, H) if residual else None
    assert gradcheck(ops.residual_norm, (leaf(B, S, H), other, weight, None if rms else bias, 1e-5, *options, rms))


def test_the_sum_alone_has_a_gradient():
    x, weight = leaf(B, S, H), leaf(H)
    _, total = ops.residual_norm(x, leaf(B, S, H), weight, None, 1e-5, P, row_keys_of(B, S))
    (grad,) = torch.autograd.grad(total.sum(), x)
    assert ((grad == 0) | ((grad - 1 / (1 - P)).abs() < 1e-9)).all()


def test_bias_gelu():
    assert gradcheck(ops.bias_gelu, (leaf(B, S, H), leaf(H)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated(activation):
    assert gradcheck(lambda x: ops.gated(x, activation), leaf(B, S, 2 * H))


@pytest.mark.parametrize("positions", [None, torch.tensor([[3, 1, 0, 8, 2], [7, 7, 2, 4, 5]])])
def test_rotary(positions):
    table = ops.rotary_table(torch.rand(2), 9)
    assert gradcheck(lambda x: ops.rotary(x, N, table, positions), leaf(B, S, N * 4 + 1))


@pytest.mark.parametrize("window", [(1, 2), ops.CAUSAL])
@pytest.mark.parametrize("share, lengths", [(1, torch.tensor([4, 0], dtype=torch.int32)), (2, None)])
def test_window_attention(window, share, lengths):
    queries, row_keys = leaf(B, S, 2 * share * 4), row_keys_of(B, 2 * share, S)
    assert gradcheck(
        lambda *leaves: ops.window_attention(*leaves, 2 * share, torch.arange(S), window, lengths, P, row_keys, 0.4),
        (leaf(B, S, 2 * 2 * 4), queries),
    )


# What the CPU's kernels serve, and two products around masked_softmax.
WAYS = pytest.mark.parametrize("attend", [fused_attention, around_softmax])


@WAYS
@pytest.mark.parametrize("lengths", [None, torch.tensor([S, 2], dtype=torch.int32)])
@pytest.mark.parametrize("dropped", [True, False])
def test_attention(attend, lengths, dropped):
    options = (P, row_keys_of(B, N, S)) if dropped else (0.0, None)
    assert gradcheck(lambda projected: attend(projected, None, N, lengths, *options), leaf(B, S, 3 * N * 4))


@WAYS
def test_attention_of_some_queries(attend):
    assert gradcheck(
        lambda queries, projected: attend(projected, queries, N, None, 0.0, None),
        (leaf(B, 2, N * 4), leaf(B, S, 2 * N * 4)),
    )


def test_attention_of_which_nothing_reads_a_part():
    """Where the gradient of a part is none at all."""
    projected, queries = leaf(B, 1, 2 * N * 4), leaf(B, 1, N * 4)  # one key: its probability is 1
    ops.attention(projected, N, None, queries=queries.detach()).sum().backward()
    assert not projected.grad[..., : N * 4].any() and (projected.grad[..., N * 4 :] == 1).all()


@pytest.mark.parametrize("chunk_rows", [9, 4])
def test_linear_cross_entropy(chunk_rows, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", chunk_rows)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS_BF16", chunk_rows)
    targets = torch.tensor([3, 0, IGNORED, 10, 5, 5, 1, IGNORED, 9])
    assert gradcheck(
        lambda *tensors: 0.3 * ops.linear_cross_entropy(*tensors, targets), (leaf(9, H), leaf(11, H), leaf(11))
    )
