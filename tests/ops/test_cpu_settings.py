"""What follows from the CPU: who makes fp32 and bf16 products, and what `auto` means."""

import sys

import pytest
import torch
from op_cases import row_keys_of
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.ops import cpu, cross_entropy
from ds_minimodel.ops.precision import resolve_precision
from tests.helpers.refusals import refuses
from tests.saved import saving_to


@pytest.fixture(autouse=True)
def settings_kept():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before
    cpu.has_bf16_products.cache_clear()


@pytest.fixture
def make_cpu(monkeypatch, tmp_path):
    """make_cpu(text): give the machine a CPU of this description; None: it tells nothing."""

    def make(text):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
        cpu.has_bf16_products.cache_clear()

    return make


@pytest.mark.parametrize(
    "text, is_changed",
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", False),
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n", True),
        (None, False),
    ],
)
def test_onednn_is_taken_on_amd_alone(make_cpu, text, is_changed):
    make_cpu(text)
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    cpu.configure_cpu()
    assert (torch.backends.mkldnn.matmul.fp32_precision == "bf16") == is_changed


@pytest.mark.parametrize(
    "text, has",
    [
        ("flags\t\t: fpu avx512f avx512_vnni\n", False),
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        (None, False),
    ],
)
def test_what_has_bf16_products(make_cpu, text, has):
    make_cpu(text)
    assert cpu.has_bf16_products() == has
    assert resolve_precision("auto", torch.device("cpu")) == ("bf16" if has else "fp32")


def test_a_cpu_has_no_fp16():
    assert resolve_precision("bf16", torch.device("cpu")) == "bf16"
    with refuses("fp16 needs a GPU"):
        resolve_precision("fp16", torch.device("cpu"))


class Products(TorchDispatchMode):
    """Which dtypes are multiplied."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        if op._schema.name.removeprefix("aten::").removesuffix("_") in ("mm", "addmm", "bmm"):
            self.dtypes.add(arguments[-1].dtype)
        return op(*arguments, **(options or {}))


@pytest.mark.parametrize("chunk_rows", [320, 30])
@pytest.mark.parametrize(
    "text, dtype",
    [("flags\t\t: avx512f\n", torch.float32), ("flags\t\t: avx512_bf16\n", torch.bfloat16)],
)
def test_bf16_products_are_made_in_what_the_cpu_has(make_cpu, monkeypatch, text, dtype, chunk_rows):
    """They are right, and kept in bf16; attention is by two products, as without kernels."""
    monkeypatch.setattr(sys.modules["ds_minimodel.ops.attention"], "backend", lambda *_: "torch")
    monkeypatch.setitem(cross_entropy.CHUNK_ROWS, "cpu", chunk_rows)
    monkeypatch.setattr(cross_entropy, "CHUNK_ROWS_BF16", chunk_rows)
    make_cpu(text)
    shapes = {
        "x": (2, 40, 48),
        "weight": (144, 48),
        "bias": (144,),
        "table": (90, 48),
        "table_bias": (90,),
    }
    low = {
        name: (torch.randn(shape) / shape[-1] ** 0.5).bfloat16().requires_grad_()
        for name, shape in shapes.items()
    }
    exact = {name: tensor.detach().double().requires_grad_() for name, tensor in low.items()}
    row_keys = row_keys_of(2, 3, 40)
    targets = torch.randint(90, (80,))

    def loss_of(x, weight, bias, table, table_bias):
        lengths = torch.tensor([40, 17], dtype=torch.int32)
        context = ops.attention(ops.linear(x, weight, bias), 3, lengths, 0.1, row_keys)
        assert context.dtype == x.dtype
        return ops.linear_cross_entropy(context.flatten(0, 1), table, table_bias, targets)

    saved = []
    with Products() as products:
        with saving_to(saved):
            loss = loss_of(**low)
        loss.backward()
    assert products.dtypes == {dtype}
    # In several chunks the gradients of the table are summed in fp32.
    if chunk_rows == 320:
        tensors = [tensor for tensor in saved if tensor.is_floating_point() and tensor.numel() > 1]
        assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    expected = loss_of(**exact)
    expected.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-2, atol=0)
    for name in shapes:
        grad = low[name].grad
        wanted = exact[name].grad
        assert grad.dtype == torch.bfloat16
        assert (grad - wanted).norm() <= 2e-2 * wanted.norm(), name
