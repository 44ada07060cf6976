"""Inputs for every operator, one list for all tests that loop over the operators.

An operator's inputs, as its schema has them: float tensors of the dtype asked for, on the CPU.
"""

import itertools

import torch

from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.ops.gated import ACTIVATIONS
from ds_minimodel.ops.rotary import rotary_table

# Whole vectors of the kernels (4, 8 or 16 lanes), parts of one, and both.
WIDTHS = (768, 100, 33, 16, 7)
P = 0.3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Errors, of the largest element, with which the operators are used on this device: a few roundings
# of the result's dtype.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 4e-3}
DTYPES = [dtype for dtype in TOLERANCE if DEVICE == "cuda" or dtype != torch.float16]


def row_keys_of(*shape):
    """Random row keys of dropout."""
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def _copied(value, dtype):
    """A copy of a tensor, in `dtype` where it holds floating-point numbers; else the value."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(dtype if value.is_floating_point() else value.dtype, copy=True)


def run(namespace, name, inputs, dtype=None):
    """Outputs of an operator as a list, with tensors that it writes to appended."""
    inputs = [_copied(value, dtype) for value in inputs]
    outputs = getattr(getattr(torch.ops, namespace), name)(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    return outputs + [inputs[0]] if name.endswith("_") else outputs


def close(got, exact, dtype):
    """Assert that a result in `dtype` is near the exact one."""
    assert got.shape == exact.shape
    assert got.isfinite().all()
    largest = max(exact.abs().max(), 1e-3)
    assert (got.double() - exact).abs().max() <= TOLERANCE[dtype] * largest


def assert_near_reference(namespace, name, inputs, tolerance):
    """Assert that outputs are near those of the reference in double precision.

    tolerance: of the largest element.
    """
    expected = run("dsmm_reference", name, inputs, torch.double)
    for output, exact in zip(run(namespace, name, inputs), expected, strict=True):
        assert output.shape == exact.shape
        assert output.isfinite().all()
        if output.numel():
            assert (output - exact).abs().max() <= tolerance * exact.abs().max()


def _dropout(dtype, width):
    yield torch.randn(5, 9, width, dtype=dtype), P, row_keys_of(5, 9)


def _norm_options():
    """(has a residual, row keys or None, rms) of each case."""
    residuals = (True, False)
    keys = (row_keys_of(5, 9), None)
    return itertools.product(residuals, keys, (False, True))


def _rate(row_keys):
    """The rate of dropout that goes with row keys."""
    return 0.0 if row_keys is None else P


def _residual_norm(dtype, width):
    x, residual = torch.randn(2, 5, 9, width, dtype=dtype)
    weight, bias = torch.randn(2, width, dtype=dtype)
    for has_residual, row_keys, rms in _norm_options():
        added = residual if has_residual else None
        shift = None if rms else bias
        yield x, added, weight, shift, 1e-5, _rate(row_keys), row_keys, rms


def _residual_norm_backward(dtype, width):
    grad, grad_sum, total = torch.randn(3, 5, 9, width, dtype=dtype)
    weight = torch.randn(width, dtype=dtype)
    for (has_residual, row_keys, rms), trains in itertools.product(_norm_options(), (True, False)):
        _, _, statistics = torch.ops.dsmm_reference.residual_norm(
            total.double(), None, weight.double(), None, 1e-5, 0, None, rms
        )
        statistics = statistics.to(torch.promote_types(dtype, torch.float32))
        p = _rate(row_keys)
        of_sum = None if row_keys is None else grad_sum
        yield grad, of_sum, total, statistics, weight, p, row_keys, has_residual, trains, rms


def _bias_gelu(dtype, width):
    x = 3 * torch.randn(5, 9, width, dtype=dtype)
    bias = torch.randn(width, dtype=dtype)
    yield x, bias


def _bias_gelu_backward(dtype, width):
    for (x, bias), trains in itertools.product(_bias_gelu(dtype, width), (True, False)):
        yield torch.randn(5, 9, width, dtype=dtype), x, bias, trains


def _gated(dtype, width):
    for activation in range(len(ACTIVATIONS)):
        yield 3 * torch.randn(5, 9, 2 * width, dtype=dtype), activation


def _gated_backward(dtype, width):
    for inputs in _gated(dtype, width):
        yield torch.randn(5, 9, width, dtype=dtype), *inputs


def _rotary(dtype, width):
    """Two heads turned and two columns that stay; with and without positions, forward and back."""
    table = rotary_table(torch.rand(width), 20)
    for positions, back in (
        (None, False),
        (torch.randint(20, (7,)), True),
        (torch.randint(20, (3, 7)), False),
    ):
        x = torch.randn(3, 7, 4 * width + 2, dtype=dtype)
        yield x, table, 2, positions, back


def _softmax_options(width):
    """Lengths with a full, an empty and a half sample; and dropout."""
    lengths = torch.tensor([width, 0, width // 2 + 1], dtype=torch.int32)
    return itertools.product((lengths, None), (row_keys_of(3, 2, 4), None))


def _masked_softmax(dtype, width):
    scores = 3 * torch.randn(3, 2, 4, width, dtype=dtype)
    for lengths, row_keys in _softmax_options(width):
        yield scores, lengths, 0.7, _rate(row_keys), row_keys


def _masked_softmax_backward(dtype, width):
    grad = torch.randn(3, 2, 4, width, dtype=dtype)
    for lengths, row_keys in _softmax_options(width):
        scores = 3 * torch.randn(3, 2, 4, width)
        probs, _ = torch.ops.dsmm_reference.masked_softmax(scores, lengths, 0.7, 0.0, None)
        yield grad, probs.to(dtype), lengths, 0.7, _rate(row_keys), row_keys


def _attention_options(dtype, width):
    """Queries as many as keys, or beside them one or more than a block; 75, 16 or one key.

    Keys fill vectors, or do not. The inputs of the backward pass, with two heads.
    """
    for num_keys, num_queries in (
        (75, None),
        (75, 1),
        (16, None),
        (16, 70),
        (1, None),
    ):
        for padded, dropped in itertools.product((True, False), repeat=2):
            lengths = _lengths_of(num_keys) if padded else None
            projected = torch.randn(3, num_keys, (2 if num_queries else 3) * 2 * width, dtype=dtype)
            queries = torch.randn(3, num_queries, 2 * width, dtype=dtype) if num_queries else None
            length = num_queries or num_keys
            row_keys = row_keys_of(3, 2, length) if dropped else None
            grad = torch.randn(3, length, 2 * width, dtype=dtype)
            yield grad, projected, queries, 2, lengths, _rate(row_keys), row_keys


def _lengths_of(num_keys):
    """Lengths of three samples: one is full, one empty, one half."""
    return torch.tensor([num_keys, 0, num_keys // 2], dtype=torch.int32)


def _without_grad(options):
    """The inputs of a forward pass: those of the backward pass without the gradient."""
    return lambda dtype, width: (inputs[1:] for inputs in options(dtype, width))


def _window_options(dtype, width):
    """Windows with two ends, narrow and wide, and causal; heads that share keys.

    The inputs of the backward pass; queries may lie beyond a sample's keys.
    """
    for (before, after), share, (num_queries, num_keys), dropped in (
        ((3, 5), 2, (75, 75), True),
        ((2, 0), 1, (70, 33), True),
        ((200, 0), 1, (40, 40), False),
        ((0, 130), 3, (5, 130), False),
    ):
        heads = share * 2
        keys_values = torch.randn(3, num_keys, 2 * 2 * width, dtype=dtype)
        grad, queries = torch.randn(2, 3, num_queries, heads * width, dtype=dtype)
        positions = torch.arange(num_queries)
        if num_queries == 5:
            positions = torch.randint(num_keys, (3, num_queries))
        lengths = _lengths_of(num_keys) if share > 1 else None
        row_keys = row_keys_of(3, heads, num_queries) if dropped else None
        inputs = keys_values, queries, heads, positions, before, after, lengths
        yield grad, *inputs, _rate(row_keys), row_keys, 0.7 * width**-0.5


def _targets(rows, vocabulary):
    targets = torch.randint(0, vocabulary, (rows,))
    targets[rows // 2] = IGNORED
    return targets


def _cross_entropy(dtype, width):
    for needs_grad, has_bias in ((True, True), (False, True), (True, False)):
        bias = torch.randn(3 * width, dtype=dtype) if has_bias else None
        logits = 4 * torch.randn(6, 3 * width, dtype=dtype)
        yield logits, bias, _targets(6, 3 * width), needs_grad


def _linear_cross_entropy(dtype, width):
    for base in (None, torch.randn(20, width, dtype=dtype) / width**0.5):
        x = torch.randn(9, width).to(dtype)
        weight = (torch.randn(50, width) / width**0.5).to(dtype)
        bias = torch.randn(50 if base is None else 70).to(dtype)
        yield x, weight, bias, _targets(9, 50), base, True, True, True


CASES = {
    "dropout": _dropout,
    "residual_norm": _residual_norm,
    "residual_norm_backward": _residual_norm_backward,
    "bias_gelu": _bias_gelu,
    "bias_gelu_backward": _bias_gelu_backward,
    "gated": _gated,
    "gated_backward": _gated_backward,
    "rotary": _rotary,
    "masked_softmax": _masked_softmax,
    "masked_softmax_backward": _masked_softmax_backward,
    "attention": _without_grad(_attention_options),
    "attention_backward": _attention_options,
    "window_attention": _without_grad(_window_options),
    "window_attention_backward": _window_options,
    "cross_entropy_": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
}
NAMES = tuple(CASES)
# linear_cross_entropy is no kernel: it is made of products and cross_entropy_.
KERNELS = tuple(name for name in NAMES if name != "linear_cross_entropy")


def cases(name, dtype, width):
    """The inputs of the operator `name` for rows of `width` elements."""
    return CASES[name](dtype, width)
