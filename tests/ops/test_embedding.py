"""Embeddings against sums in double precision."""
import pytest
import torch

from ds_minimodel import ops

V, H, PAD = 60, 16, 1


@pytest.mark.parametrize("dtype, tolerance", [
    (torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_a_gradient_of_many_uses_is_rounded_once(dtype, tolerance):
    torch.manual_seed(0)
    tokens = torch.randint(V, (8, 128))
    tokens[torch.rand(tokens.shape) < 0.3] = V - 1             # <mask>
    weight = torch.randn(V, H).to(dtype).requires_grad_()
    out, grad = ops.embedding(tokens, weight, PAD), (torch.randn(8, 128, H) + 0.5).to(dtype)
    assert out.equal(weight.detach()[tokens]) and out.dtype == dtype
    out.backward(grad)
    exact = torch.zeros(V, H, dtype=torch.double).index_add_(0, tokens.flatten(), grad.flatten(0, 1).double())
    exact[PAD] = 0
    assert weight.grad.dtype == dtype and not weight.grad[PAD].any()
    assert ((weight.grad - exact).norm(dim=1) <= tolerance * exact.norm(dim=1)).all()


def test_a_frozen_table_has_no_graph():
    assert not ops.embedding(torch.tensor([[3, PAD]]), torch.randn(V, H).bfloat16(), PAD).requires_grad
