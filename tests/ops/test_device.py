"""The operators on this machine's device (a GPU where there is one) against double precision.

Each by itself; and forward and backward through autograd, at sizes of a training step and at odd
ones. scripts/gpu_check.sh runs this.
"""

import pytest
import torch
import torch.nn.functional as F
from op_cases import DEVICE, DTYPES, KERNELS, WIDTHS, assert_near_reference, cases, close

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops.loading import INSTRUCTION_SETS

compiled = pytest.mark.skipif(
    not ops.backend("dropout").startswith("compiled"), reason="kernels not built"
)
# Of the largest element: a few roundings of the result's dtype.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 2e-3}


@pytest.fixture(params=["cuda"] if DEVICE == "cuda" else INSTRUCTION_SETS)
def code(request):
    """The device's kernels; on a CPU those of each instruction set that it has."""
    if DEVICE == "cuda":
        yield
        return
    machine = torch.ops.dsmm_cpu_isa.get()
    wanted = INSTRUCTION_SETS.index(request.param)
    if wanted > machine:
        pytest.skip("this machine lacks the instructions")
    torch.ops.dsmm_cpu_isa.set(wanted)
    yield
    torch.ops.dsmm_cpu_isa.set(machine)


def compare(ours, reference, tensors, dtype):
    """Result and gradients of `ours` in `dtype` on the device against `reference` in double
    precision.
    """
    low = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in tensors]
    exact = [tensor.detach().double().requires_grad_() for tensor in low]
    got = ours(*low)
    expected = reference(*exact)
    close(got, expected, dtype)
    grad = torch.randn(got.shape, device=DEVICE, dtype=got.dtype)
    for one, other in zip(
        torch.autograd.grad(got, low, grad), torch.autograd.grad(expected, exact, grad.double())
    ):
        close(one, other, dtype)


@compiled
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype):
    for width in WIDTHS:
        for inputs in cases(name, dtype, width):
            inputs = [
                value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in inputs
            ]
            assert_near_reference("dsmm", name, inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows, width, vocabulary", [(100, 64, 1000), (2500, 32, 501), (5, 33, 77)])
def test_linear_cross_entropy(rows, width, vocabulary, dtype):
    targets = torch.randint(vocabulary, (rows,), device=DEVICE)
    targets[::7] = IGNORED
    compare(
        lambda *leaves: ops.linear_cross_entropy(*leaves, targets) / rows,
        lambda x, weight, bias: (
            F.cross_entropy(x @ weight.T + bias, targets, reduction="sum") / rows
        ),
        (
            torch.randn(rows, width),
            torch.randn(vocabulary, width) / width**0.5,
            torch.randn(vocabulary),
        ),
        dtype,
    )


@compiled
@pytest.mark.parametrize(
    "name, shapes, options",
    [
        ("bias_gelu_backward", ((1000, 40), (1000, 40), (40,)), (True,)),
        ("attention_backward", ((3, 70, 64), (3, 70, 192)), (None, 4, None, 0.0, None)),
    ],
)
def test_results_do_not_depend_on_the_number_of_threads(name, shapes, options):
    tensors = [torch.randn(shape) for shape in shapes]
    threads = torch.get_num_threads()
    results = []
    for number in (1, 3):
        torch.set_num_threads(number)
        results.append(getattr(torch.ops.dsmm, name)(*tensors, *options))
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


@compiled
@pytest.mark.parametrize("num_queries, num_keys", [(0, 5), (5, 0)])
def test_attention_without_queries_or_keys(num_queries, num_keys):
    queries, projected = (
        torch.randn(2, length, width, requires_grad=True)
        for length, width in ((num_queries, 12), (num_keys, 24))
    )
    context = ops.attention(projected, 3, None, queries=queries)
    context.sum().backward()
    assert context.shape == (2, num_queries, 12)
    assert not any(tensor.any() for tensor in (context, projected.grad, queries.grad))


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_go_to_the_reference(dtype):
    x = torch.randn(3, 5, dtype=dtype)
    bias = torch.randn(5, dtype=dtype)
    assert torch.ops.dsmm.bias_gelu(x, bias).equal(torch.ops.dsmm_reference.bias_gelu(x, bias))
    assert ops.backend("bias_gelu", dtype=dtype).startswith("torch")


@compiled
def test_empty_and_strided_inputs():
    weight = torch.ones(8)
    assert ops.residual_norm(torch.empty(0, 8), None, weight, weight, 1e-5)[0].shape == (0, 8)
    assert ops.gated(torch.empty(0, 8), "silu").shape == (0, 4)
    assert ops.rotary(torch.empty(0, 3, 8), 1, torch.ones(3, 2, 4)).shape == (0, 3, 8)
    assert ops.masked_softmax(torch.empty(0, 2, 3, 4), None, 1.0).shape == (0, 2, 3, 4)
    x = torch.randn(8, 6).T
    torch.testing.assert_close(ops.bias_gelu(x, weight), torch.nn.functional.gelu(x + weight))


@pytest.mark.skipif(DEVICE == "cuda", reason="no other test could use the GPU after its assertion")
@pytest.mark.parametrize("place", [-1, 3])
def test_rotary_positions_outside_the_table_are_refused(place):
    x = torch.randn(1, 2, 8, requires_grad=True)
    table = torch.ones(3, 2, 4)
    for layer in (ops.rotary, torch.compile(ops.rotary, backend="eager")):
        with pytest.raises(RuntimeError, match="outside the table"):
            layer(x, 1, table, torch.tensor([0, place]))


@compiled
def test_large_rows_take_the_streaming_store():
    x, residual = torch.randn(2, 2048, 192)
    weight, bias = torch.randn(2, 192)
    _, total = ops.residual_norm(x, residual, weight, bias, 1e-5)
    assert total.equal(x + residual)
