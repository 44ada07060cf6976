"""The library for fp32 products follows the maker of the CPU, and the way of bf16 products what it can do."""

import pytest
import torch
from op_cases import keys

from ds_minimodel import ops
from ds_minimodel.ops import cpu


@pytest.fixture(autouse=True)
def settings_kept():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before
    cpu.has_bf16_products.cache_clear()


@pytest.fixture
def make_cpu(monkeypatch, tmp_path):
    """A function that gives the machine a CPU of this description; None: a system that does not tell."""
    def make(text):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
        cpu.has_bf16_products.cache_clear()
    return make


@pytest.mark.parametrize("text, is_changed", [
    ("processor\t: 0\nvendor_id\t: GenuineIntel\n", False), ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", True),
    (None, False)])
def test_onednn_is_taken_on_amd_alone(make_cpu, text, is_changed):
    make_cpu(text)
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    cpu.configure_cpu()
    assert (torch.backends.mkldnn.matmul.fp32_precision == "bf16") == is_changed


@pytest.mark.parametrize("text, has", [
    ("flags\t\t: fpu avx512f avx512_vnni\n", False), ("flags\t\t: fpu avx512f avx512_bf16\n", True),
    ("Features\t: fp asimd bf16\n", True), (None, False)])
def test_what_has_bf16_products(make_cpu, text, has):
    make_cpu(text)
    assert cpu.has_bf16_products() == has


@pytest.mark.parametrize("text", ["flags\t\t: avx512f\n", "flags\t\t: avx512_bf16\n"])
def test_bf16_products_are_right_either_way(make_cpu, text):
    make_cpu(text)
    torch.manual_seed(0)
    shapes = {"x": (2, 40, 48), "weight": (144, 48), "bias": (144,), "table": (90, 48), "table_bias": (90,)}
    low = {name: (torch.randn(shape) / shape[-1]**0.5).bfloat16().requires_grad_() for name, shape in shapes.items()}
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in low.items()}
    row_keys, targets = keys(2, 3, 40), torch.randint(90, (80,))
    losses = []
    for leaves in (low, exact):
        projected = ops.linear(leaves["x"], leaves["weight"], leaves["bias"])
        context = ops.attention(projected, 3, torch.tensor([40, 17], dtype=torch.int32), 0.1, row_keys)
        assert projected.dtype == context.dtype == leaves["x"].dtype
        losses.append(ops.linear_cross_entropy(context.flatten(0, 1), leaves["table"], leaves["table_bias"], targets))
        losses[-1].backward()
    assert losses[0].dtype == torch.float32
    torch.testing.assert_close(losses[0].double(), losses[1], rtol=1e-2, atol=0)
    for name in shapes:
        got, expected = low[name].grad, exact[name].grad
        assert got.dtype == torch.bfloat16
        assert (got - expected).norm() <= 2e-2 * expected.norm(), name
