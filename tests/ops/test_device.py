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


@compiled
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype):
    for width in WIDTHS:
        for inputs in cases(name, dtype, width):
            inputs = [value.to(DEVICE) if torch.is_tensor(value) else value for value in inputs]
            assert_near_reference("dsmm", name, inputs, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "rows, width, vocabulary",
    [
        (100, 64, 1000),
        (2500, 32, 501),
        (5, 33, 77),
    ],
)
def test_linear_cross_entropy(rows, width, vocabulary, dtype):
    """Loss and gradients in `dtype` against torch's in double precision."""
    targets = torch.randint(vocabulary, (rows,), device=DEVICE)
    targets[::7] = IGNORED
    x = torch.randn(rows, width)
    weight = torch.randn(vocabulary, width) / width**0.5
    bias = torch.randn(vocabulary)
    leaves = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in (x, weight, bias)]
    loss = ops.linear_cross_entropy(*leaves, targets) / rows

    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = F.cross_entropy(logits, targets, reduction="sum") / rows
    close(loss, expected, dtype)
    grad = torch.randn((), device=DEVICE)
    grads = torch.autograd.grad(loss, leaves, grad)
    exact_grads = torch.autograd.grad(expected, exact, grad.double())
    for found, wanted in zip(grads, exact_grads):
        close(found, wanted, dtype)


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
    for count in (1, 3):
        torch.set_num_threads(count)
        results.append(getattr(torch.ops.dsmm, name)(*tensors, *options))
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))


@compiled
@pytest.mark.parametrize("num_queries, num_keys", [(0, 5), (5, 0)])
def test_attention_without_queries_or_keys(num_queries, num_keys):
    queries = torch.randn(2, num_queries, 12, requires_grad=True)
    projected = torch.randn(2, num_keys, 24, requires_grad=True)
    context = ops.attention(projected, 3, None, queries=queries)
    context.sum().backward()
    assert context.shape == (2, num_queries, 12)
    assert not any(tensor.any() for tensor in (context, projected.grad, queries.grad))


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_go_to_the_reference(dtype):
    x = torch.randn(3, 5, dtype=dtype)
    bias = torch.randn(5, dtype=dtype)
    expected = torch.ops.dsmm_reference.bias_gelu(x, bias)
    assert torch.ops.dsmm.bias_gelu(x, bias).equal(expected)
    assert ops.backend("bias_gelu", dtype=dtype).startswith("torch")


@compiled
def test_empty_and_strided_inputs():
    weight = torch.ones(8)
    normalised, _ = ops.residual_norm(torch.empty(0, 8), None, weight, weight, 1e-5)
    assert normalised.shape == (0, 8)
    assert ops.gated(torch.empty(0, 8), "silu").shape == (0, 4)
    turned = ops.rotary(torch.empty(0, 3, 8), 1, torch.ones(3, 2, 4))
    assert turned.shape == (0, 3, 8)
    probs = ops.masked_softmax(torch.empty(0, 2, 3, 4), None, 1.0)
    assert probs.shape == (0, 2, 3, 4)
    x = torch.randn(8, 6).T
    torch.testing.assert_close(ops.bias_gelu(x, weight), F.gelu(x + weight))


@pytest.mark.skipif(DEVICE == "cuda", reason="no other test could use the GPU after its assertion")
@pytest.mark.parametrize("position", [-1, 3])
def test_rotary_positions_outside_the_table_are_refused(position):
    x = torch.randn(1, 2, 8, requires_grad=True)
    table = torch.ones(3, 2, 4)
    for layer in (ops.rotary, torch.compile(ops.rotary, backend="eager")):
        with pytest.raises(RuntimeError, match="outside the table"):
            layer(x, 1, table, torch.tensor([0, position]))


@compiled
def test_large_rows_take_the_streaming_store():
    x, residual = torch.randn(2, 2048, 192)
    weight, bias = torch.randn(2, 192)
    _, total = ops.residual_norm(x, residual, weight, bias, 1e-5)
    assert total.equal(x + residual)
