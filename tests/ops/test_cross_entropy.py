"""Gradients of linear_cross_entropy, and what it refuses; test_device.py compares it with
torch's.
"""

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops import cross_entropy

P = 50
H = 24
V = 300


def tensors():
    torch.manual_seed(0)
    return [torch.randn(*shape) for shape in ((P, H), (V, H), (V,))], torch.randint(0, V, (P,))


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
    assert x.grad is not None and weight.grad is None and bias.grad is None
    with torch.no_grad():
        assert not ops.linear_cross_entropy(x, weight, bias, targets).requires_grad


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_rows_of_a_base_are_read_and_the_others_get_their_gradient(dtype, tolerance):
    (x, weight, bias), targets = tensors()
    found = []
    for kept in (0, 200):
        leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in (x, weight[kept:], bias)]
        base = weight[:kept].to(dtype) if kept else None
        losses = ops.token_losses(*leaves, targets, base)
        loss = ops.linear_cross_entropy(*leaves, targets, base)
        loss.backward()
        found.append([losses, loss.detach(), *(leaf.grad for leaf in leaves)])
    found[0][3] = found[0][3][200:]
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


def test_a_divergence_is_torchs():
    (x, weight, _) = tensors()[0]
    taught = torch.randn(P, H)
    leaves = [leaf.clone().requires_grad_() for leaf in (x, weight[200:])]
    own = [leaf.clone().requires_grad_() for leaf in (x, weight[200:])]
    loss = 0.3 * ops.linear_divergence(leaves[0], taught, leaves[1], weight[:200])
    student = (own[0] @ torch.cat((weight[:200], own[1])).T).log_softmax(-1)[:, :200]
    teacher = (taught @ weight[:200].T).log_softmax(-1)
    theirs = 0.3 * torch.nn.functional.kl_div(student, teacher, reduction="sum", log_target=True)
    loss.backward()
    theirs.backward()
    torch.testing.assert_close(
        [loss, *(leaf.grad for leaf in leaves)], [theirs, *(leaf.grad for leaf in own)]
    )


@pytest.mark.usefixtures("chunked")
def test_gradients_are_right():
    exact = [leaf.double().requires_grad_() for leaf in tensors()[0]]
    targets = tensors()[1]
    targets[::7] = IGNORED
    assert gradcheck(
        lambda *leaves: 0.3 * ops.linear_cross_entropy(*leaves, targets), exact, fast_mode=True
    )


def test_losses_of_tokens_add_up_to_the_loss(monkeypatch):
    monkeypatch.setattr(cross_entropy, "TOKEN_ROWS", 16)
    (x, weight, bias), targets = tensors()
    targets[[4, 17]] = IGNORED
    losses = ops.token_losses(x, weight, bias, targets)
    torch.testing.assert_close(losses.sum(), ops.linear_cross_entropy(x, weight, bias, targets))
    assert not losses[[4, 17]].any() and (losses > 0).sum() == P - 2


def test_a_target_outside_the_vocabulary_is_refused():
    (x, weight, bias), targets = tensors()
    targets[3] = V
    with pytest.raises(RuntimeError, match="out of bounds"):
        ops.linear_cross_entropy(x, weight, bias, targets)


def test_the_kernels_ignore_the_same_target():
    arguments = Path(__file__).parents[2] / "csrc/arguments.h"
    assert int(re.search(r"kIgnored = (-?\d+);", arguments.read_text())[1]) == IGNORED
