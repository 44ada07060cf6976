"""The compiled CPU kernels against the torch references in double precision."""

import pytest
import torch
from op_cases import KERNELS, WIDTHS, P, assert_near_reference, cases, row_keys_of

from ds_minimodel import ops
from ds_minimodel.ops.loading import INSTRUCTION_SETS

compiled = pytest.mark.skipif(not ops.backend("dropout").startswith("compiled"), reason="kernels not built")
# Of the largest element: a few roundings of the result's dtype.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 8e-3}


@pytest.fixture(params=range(len(INSTRUCTION_SETS)), ids=INSTRUCTION_SETS)
def instruction_set(request):
    machine = torch.ops.dsmm_cpu_isa.get()
    if request.param > machine:
        pytest.skip("this machine lacks the instructions")
    torch.ops.dsmm_cpu_isa.set(request.param)
    yield
    torch.ops.dsmm_cpu_isa.set(machine)


@compiled
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_equals_reference(name, dtype, instruction_set):
    torch.manual_seed(0)
    for width in WIDTHS:
        for inputs in cases(name, dtype, width):
            assert_near_reference("dsmm", name, inputs, TOLERANCE[dtype])


@compiled
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dropout_bits_are_those_of_the_reference(dtype, instruction_set):
    for width in WIDTHS:
        x, row_keys = torch.ones(64, width, dtype=dtype), row_keys_of(64)
        dropped = torch.ops.dsmm_reference.dropout(x, P, row_keys) == 0
        assert (torch.ops.dsmm.dropout(x, P, row_keys) == 0).equal(dropped)
        normed, _ = ops.residual_norm(x, None, torch.ones(width), torch.zeros(width), 1e-5, P, row_keys)
        mean = (~dropped).float().mean(-1, keepdim=True)
        assert ((normed < 0) == (dropped & (mean < 1))).masked_fill(mean == 0, True).all()


@compiled
@pytest.mark.parametrize(
    "name, shapes, options",
    [
        ("bias_gelu_backward", ((1000, 40), (1000, 40), (40,)), (True,)),
        ("attention_backward", ((3, 70, 64), (3, 70, 192)), (None, 4, None, 0.0, None)),
    ],
)
def test_results_do_not_depend_on_the_number_of_threads(name, shapes, options):
    torch.manual_seed(0)
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
        torch.randn(2, length, width, requires_grad=True) for length, width in ((num_queries, 12), (num_keys, 24))
    )
    context = ops.attention(projected, 3, None, queries=queries)
    context.sum().backward()
    assert context.shape == (2, num_queries, 12)
    assert not any(tensor.any() for tensor in (context, projected.grad, queries.grad))


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_go_to_the_reference(dtype):
    x, bias = torch.randn(3, 5, dtype=dtype), torch.randn(5, dtype=dtype)
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


@compiled
def test_large_rows_take_the_streaming_store():
    torch.manual_seed(0)
    x, residual = torch.randn(2, 2048, 192)
    weight, bias = torch.randn(2, 192)
    _, total = ops.residual_norm(x, residual, weight, bias, 1e-5)
    assert total.equal(x + residual)
