"""Attention in Triton against the references in double precision: by its interpreter, or on a GPU where there is one;
and what it compiles to for GPUs that are not here."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from op_cases import P, row_keys_of

from ds_minimodel.ops.attention import _backward_reference, _flash_forward_reference
from ds_minimodel.ops.dropout import keep_mask

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", "3.9" if DEVICE == "cpu" else None, "the interpreter of older ones fails with numpy 2.4")
from ds_minimodel.ops import attention_triton  # noqa: E402

# Of the largest element: a few roundings of the result's dtype.
TOLERANCE = {torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


def inputs_of(batch, num_queries, num_keys, heads, width, dtype, *, others=False, lengths=None, dropped=False):
    """Arguments of flash_attention; queries beside the keys where `others`."""
    torch.manual_seed(0)
    projected = torch.randn(batch, num_keys, (2 if others else 3) * heads * width, dtype=dtype, device=DEVICE)
    queries = torch.randn(batch, num_queries, heads * width, dtype=dtype, device=DEVICE) if others else None
    lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) if lengths else None
    row_keys = row_keys_of(batch, heads, num_queries).to(DEVICE) if dropped else None
    return projected, queries, heads, lengths, P if dropped else 0.0, row_keys


def doubled(*inputs):
    return [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs]


def close(got, exact, dtype):
    assert got.shape == exact.shape and got.isfinite().all()
    assert not got.numel() or (got - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


# Whole blocks and parts of them, one block and several, in both directions; a sample without keys, lengths beyond the
# keys; widths that are padded and one that is a power of two.
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "shape, options",
    [
        ((3, 75, 75, 2, 16), {"lengths": [75, 0, 37], "dropped": True}),
        ((2, 64, 64, 1, 32), {}),
        ((2, 5, 70, 1, 48), {"others": True, "lengths": [90, 3], "dropped": True}),
        ((1, 130, 70, 1, 33), {"others": True, "dropped": True}),
        ((1, 70, 130, 1, 96), {"others": True, "lengths": [66]}),
        ((1, 70, 70, 1, 128), {"dropped": True}),
    ],
    ids=str,
)
def test_equals_the_reference(shape, options, dtype):
    inputs = inputs_of(*shape, dtype, **options)
    out, logsumexp = attention_triton.forward(*inputs)
    exact = _flash_forward_reference(*doubled(*inputs))
    close(out, exact[0], dtype)
    torch.testing.assert_close(logsumexp.double(), exact[1], rtol=0, atol=1e-5)
    grad = torch.randn_like(out)
    grads = attention_triton.backward(grad, out, logsumexp, *inputs)
    for got, expected in zip(grads, _backward_reference(*doubled(grad, *inputs)), strict=True):
        close(got, expected, dtype)
    lengths = inputs[3]
    for sample, length in enumerate([] if lengths is None else lengths.tolist()):
        width = shape[3] * shape[4]
        assert not grads[0][sample, length:, -2 * width :].any()
        assert length or not (out[sample].any() or grads[0][sample].any())


# Windows of less than a block and of more, causal too; heads that share keys; positions of each sample, in any order.
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "num_queries, num_keys, share, window, lengths, dropped",
    [
        (200, 200, 1, (3, 5), None, True),
        (150, 150, 2, (150, 0), [150, 40, 0], False),
        (70, 300, 1, (64, 64), [300, 17, 280], True),
        (300, 70, 3, (20, 0), None, False),
    ],
)
def test_window_equals_the_reference(num_queries, num_keys, share, window, lengths, dropped, dtype):
    torch.manual_seed(0)
    heads, width = 2 * share, 32
    keys_values = torch.randn(3, num_keys, 2 * 2 * width, dtype=dtype, device=DEVICE)
    grad, queries = torch.randn(2, 3, num_queries, heads * width, dtype=dtype, device=DEVICE)
    every = torch.arange(num_queries, device=DEVICE)
    positions = torch.randint(num_keys, (3, num_queries), device=DEVICE) if num_queries == 70 else every
    lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) if lengths else None
    p, row_keys = (P, row_keys_of(3, heads, num_queries).to(DEVICE)) if dropped else (0.0, None)
    seen = attention_triton.Window(positions, *window, 0.2)
    inputs = keys_values, queries, heads, lengths, p, row_keys, seen
    exact = doubled(keys_values, queries, heads, positions, *window, lengths, p, row_keys, 0.2)
    out, logsumexp = attention_triton.forward(*inputs)
    expected, sums = torch.ops.dsmm_reference.flash_window_attention(*exact)
    close(out, expected, dtype)
    torch.testing.assert_close(logsumexp.double(), sums, rtol=0, atol=1e-5)
    grads = attention_triton.backward(grad, out, logsumexp, *inputs)
    exact_grads = torch.ops.dsmm_reference.window_attention_backward(grad.double(), *exact)
    for got, wanted in zip(grads, exact_grads, strict=True):
        close(got, wanted, dtype)


def test_every_bit_of_dropout_is_the_references():
    """In the forward kernel and in both of the backward pass, over several blocks of queries and keys.

    With queries of 0 all probabilities are equal. Values, a gradient or keys with a single 1 then show each bit.
    """
    heads, width, length = 2, 64, 128
    row_keys = row_keys_of(1, heads, length).to(DEVICE)
    kept_NQK = keep_mask(row_keys, length, P)[0]
    eye_BSH = torch.eye(length, dtype=torch.float16, device=DEVICE)[None]  # key h * 64 + d, at d of head h
    zeros_BSH, ones_BSH = torch.zeros_like(eye_BSH), torch.ones_like(eye_BSH)

    def passes(k, v, grad):
        inputs = torch.cat((zeros_BSH, k, v), -1), None, heads, None, P, row_keys
        out, logsumexp = attention_triton.forward(*inputs)
        return out, *attention_triton.backward(grad, out, logsumexp, *inputs)[0].chunk(3, -1)

    out, _, _, grad_v = passes(zeros_BSH, eye_BSH, eye_BSH)
    _, grad_q, _, _ = passes(eye_BSH, ones_BSH, ones_BSH)
    for head, own in enumerate((slice(0, width), slice(width, length))):
        assert (out[0, :, own] != 0).equal(kept_NQK[head, :, own])
        assert (grad_v[0, :, own] != 0).equal(kept_NQK[head, own].T)
        assert (grad_q[0, :, own] > 0).equal(kept_NQK[head, :, own])  # dropped ones have the others' mean taken off
    assert 0 < kept_NQK.float().mean() < 1


def test_samples_of_one_token():
    """Whose rows may have any stride."""
    projected = torch.randn(1, 3, 96, dtype=torch.float16, device=DEVICE).transpose(0, 1)
    assert projected.is_contiguous() and projected.stride(1) != 96
    out, _ = attention_triton.forward(projected, None, 2, None, 0.0, None)
    assert out.equal(projected[..., 64:])  # with one key, the context is its value


def test_nan_is_not_hidden():
    inputs = inputs_of(1, 70, 70, 1, 16, torch.float16)
    inputs[0][0, 3, 16] = torch.nan  # a key
    assert attention_triton.forward(*inputs)[0].isnan().all()


def test_without_queries_or_keys():
    for num_queries, num_keys in ((0, 5), (5, 0)):
        inputs = inputs_of(1, num_queries, num_keys, 1, 16, torch.float16, others=True)
        out, logsumexp = attention_triton.forward(*inputs)
        assert out.shape == (1, num_queries, 16) and not out.any()
        assert not any(grad.any() for grad in attention_triton.backward(out, out, logsumexp, *inputs))


@pytest.mark.parametrize("position, name", [(1, "queries"), (3, "lengths"), (5, "row_keys")])
def test_arguments_that_do_not_fit_are_refused(position, name):
    inputs = list(inputs_of(2, 5, 70, 1, 16, torch.float16, others=True, lengths=[70, 3], dropped=True))
    for wrong in (inputs[position][:1], inputs[position].double()):
        with pytest.raises(RuntimeError, match=f"{name} must be "):
            attention_triton.forward(*inputs[:position], wrong, *inputs[position + 1 :])


KERNELS = ("forward", "grad_queries", "grad_keys")
SHARED = 99 * 1024  # bytes; what a block can have on every architecture from sm_80 on
PRODUCTS = {"sm_80": "mma.sync", "sm_90": "wgmma"}


def test_compiled_code_uses_the_device():
    """Nothing spilt, the products on tensor cores, keys and values loaded ahead."""
    command = [sys.executable, Path(__file__).with_name("compile_attention.py"), *PRODUCTS]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(one["kernel"], one["architecture"]) for one in found} == set(itertools.product(KERNELS, PRODUCTS))
    for one in found:
        assert one["spilt"] == 0 and one["shared"] <= SHARED, one
        assert set(one["products"]) == {PRODUCTS[one["architecture"]]} and one["asynchronous"], one
