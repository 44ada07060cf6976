"""Gradients of linear_cross_entropy, and what it refuses.

test_device.py compares it with torch's.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck
from torch.testing import assert_close

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops import cross_entropy

P = 50
H = 24
V = 300


def tensors():
    """([x, weight, bias], targets)"""
    torch.manual_seed(0)
    x = torch.randn(P, H)
    weight = torch.randn(V, H)
    bias = torch.randn(V)
    return [x, weight, bias], torch.randint(0, V, (P,))


@pytest.fixture(params=[64, 16])
def chunked(request, monkeypatch):
    """All positions in one chunk, and in several."""
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", request.param)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS_BF16", request.param)


@pytest.mark.usefixtures("chunked")
def test_gradients_only_where_required():
    (x, weight, bias), targets = tensors()
    x.requires_grad_()
    loss = ops.linear_cross_entropy(x, weight, bias, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert x.grad is not None
    assert weight.grad is None
    assert bias.grad is None
    with torch.no_grad():
        assert not ops.linear_cross_entropy(x, weight, bias, targets).requires_grad


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_rows_of_a_base_are_read_and_the_others_get_their_gradient(dtype, tolerance):
    (x, weight, bias), targets = tensors()

    def results(num_base):
        """Losses, their sum, and the gradients of x, the rows after the base, and the bias."""
        rows = weight[num_base:]
        leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in (x, rows, bias)]
        base = weight[:num_base].to(dtype) if num_base else None
        losses = ops.token_losses(*leaves, targets, base)
        loss = ops.linear_cross_entropy(*leaves, targets, base)
        loss.backward()
        grad_x, grad_rows, grad_bias = (leaf.grad for leaf in leaves)
        return losses, loss.detach(), grad_x, grad_rows[200 - num_base :], grad_bias

    assert_close(results(0), results(200), rtol=tolerance, atol=tolerance)


def test_a_divergence_is_torchs():
    (x, weight, _) = tensors()[0]
    taught = torch.randn(P, H)
    base = weight[:200]
    leaves = [x.clone().requires_grad_(), weight[200:].clone().requires_grad_()]
    loss = 0.3 * ops.linear_divergence(leaves[0], taught, leaves[1], base)
    loss.backward()

    exact = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    logits = exact[0] @ torch.cat((base, exact[1])).T
    student = logits.log_softmax(-1)[:, :200]
    teacher = (taught @ base.T).log_softmax(-1)
    expected = 0.3 * F.kl_div(student, teacher, reduction="sum", log_target=True)
    expected.backward()
    assert_close(loss, expected)
    for leaf, wanted in zip(leaves, exact, strict=True):
        assert_close(leaf.grad, wanted.grad)


@pytest.mark.usefixtures("chunked")
def test_gradients_are_right():
    leaves, targets = tensors()
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    targets[::7] = IGNORED

    def loss_of(x, weight, bias):
        return 0.3 * ops.linear_cross_entropy(x, weight, bias, targets)

    assert gradcheck(loss_of, exact, fast_mode=True)


def test_losses_of_tokens_add_up_to_the_loss(monkeypatch):
    monkeypatch.setattr(cross_entropy, "TOKEN_ROWS", 16)
    (x, weight, bias), targets = tensors()
    targets[[4, 17]] = IGNORED
    losses = ops.token_losses(x, weight, bias, targets)
    assert_close(losses.sum(), ops.linear_cross_entropy(x, weight, bias, targets))
    assert not losses[[4, 17]].any()
    assert (losses > 0).sum() == P - 2


def test_a_target_outside_the_vocabulary_is_refused():
    (x, weight, bias), targets = tensors()
    targets[3] = V
    with pytest.raises(RuntimeError, match="out of bounds"):
        ops.linear_cross_entropy(x, weight, bias, targets)


def test_the_kernels_ignore_the_same_target():
    arguments = Path(__file__).parents[2] / "csrc/arguments.h"
    assert int(re.search(r"kIgnored = (-?\d+);", arguments.read_text())[1]) == IGNORED
