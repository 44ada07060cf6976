"""Attention against torch's; rows without keys; which way serves where, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F
from op_cases import DEVICE, DTYPES, P, cases, close
from torch.testing import assert_close

from benchmarks.operators import Called
from ds_minimodel import ops
from ds_minimodel.ops.attention import (
    _backward_reference,
    _forward_reference,
    fused_attention,
    torch_attention,
    unfused_attention,
)
from ds_minimodel.ops.window import keys_in_window, torch_window_attention
from tests.saved import saving_to, storage_bytes


def test_a_sample_without_keys_attends_to_nothing():
    lengths = torch.tensor([0, 2], dtype=torch.int32)
    probs = ops.masked_softmax(torch.randn(2, 1, 3, 5), lengths, 1.0)
    assert (probs[0] == 0).all()
    assert (probs[1, ..., 2:] == 0).all()
    assert_close(probs[1].sum(-1), torch.ones(1, 3))


def without_dropout(projected, queries, num_heads, lengths, p, row_keys):
    return torch_attention(projected, queries, num_heads, lengths)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", [fused_attention, unfused_attention, without_dropout])
def test_every_way_equals_the_reference(way, dtype, monkeypatch):
    """Result and gradients; torch's kernels never see a row without keys."""
    masks = []

    def attend(q, k, v, attn_mask=None, torchs=F.scaled_dot_product_attention, **options):
        masks.append(attn_mask)
        return torchs(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    for inputs in cases("attention_backward", dtype, 16):
        grad, *inputs = (x.to(DEVICE) if torch.is_tensor(x) else x for x in inputs)
        if way is without_dropout and inputs[-1] is not None:
            continue
        exact = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs]
        leaves = [x.requires_grad_() for x in inputs[:2] if x is not None]
        context = way(*inputs)
        results = [context, *torch.autograd.grad(context, leaves, grad)]
        expected = [_forward_reference(*exact), *_backward_reference(grad.double(), *exact)]
        for result, wanted in zip(results, expected):
            close(result, wanted, dtype)
    assert all(mask is None or mask.any(-1).all() for mask in masks)
    assert bool(masks) == (way is without_dropout)


def test_windows_by_torchs_kernel_equal_the_reference():
    for inputs in cases("window_attention", torch.float32, 16):
        keys_values, queries, num_heads, *window, _, row_keys, scale = inputs
        if row_keys is None:
            seen = keys_in_window(keys_values.shape[1], *window)
            context = torch_window_attention(keys_values, queries, num_heads, seen, scale)
            exact = torch.ops.dsmm_reference.window_attention(*inputs)
            assert_close(context, exact, atol=1e-5, rtol=0)


def as_on_a_gpu(way, projected, queries, num_heads):
    """Attention as GPUs compute it: causal, in a window, or of samples that are padded."""
    length = queries.shape[1]
    scale = (queries.shape[-1] // num_heads) ** -0.5
    lengths = torch.tensor([length, length // 2 + 1], dtype=torch.int32, device=queries.device)
    positions = torch.arange(length, device=queries.device)
    if way == "padded":
        return torch_attention(projected, queries, num_heads, lengths)
    seen = keys_in_window(length, positions, 70, 0, None) if way == "window" else None
    return torch_window_attention(projected, queries, num_heads, seen, scale)


@pytest.mark.parametrize("length", [64, 128, 192, 320, 1000, 1024])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "heads, key_heads, width",
    [
        (9, 3, 64),
        (32, 8, 64),
        (4, 1, 256),
    ],
)
@pytest.mark.parametrize("way", ["causal", "window", "padded"])
@pytest.mark.parametrize("below_zero", [False, True])
def test_attention_of_gpus_is_finite_and_right_and_the_same_twice(
    way, heads, key_heads, width, dtype, length, below_zero
):
    """cuDNN's gradients were nan where a mask was given and all scores were far below zero."""
    lengths_of_cpu = (64, 320) if way == "causal" and heads == 9 else (64,)
    if DEVICE == "cpu" and length not in lengths_of_cpu:
        pytest.skip("for a GPU")
    key_heads = heads if way == "padded" else key_heads
    torch.manual_seed(length)
    shapes = [(2, length, size * width) for size in (heads, heads, key_heads, key_heads)]
    grad, queries, keys, values = (
        torch.randn(shape, device=DEVICE, dtype=dtype) for shape in shapes
    )
    if below_zero:
        queries = -2 * (queries.abs() + 1)
        keys = keys.abs() + 1
    keys_values = torch.cat((keys, values), -1)
    leaves = [keys_values.requires_grad_(), queries.requires_grad_()]

    def results(leaves, grad):
        context = as_on_a_gpu(way, *leaves, heads)
        return context, *torch.autograd.grad(context, leaves, grad)

    exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = results(exact_leaves, grad.double())
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        runs = [results(leaves, grad) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    tolerance = {torch.float32: 1e-3, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for first, second, wanted in zip(*runs, exact, strict=True):
        assert torch.equal(first, second)
        assert first.isfinite().all()
        assert (first - wanted).norm() <= tolerance * wanted.norm()


def kept_and_called(device, *, padded=False, dropped=False, length=64):
    """(bytes kept for the backward pass, our operators that are called) on a device.

    With two heads of 64 in fp16.
    """
    saved = []
    with torch.device("meta"), ops.meta_stands_for(device), Called() as called, saving_to(saved):
        projected = torch.empty(1, length, 6 * 64, dtype=torch.float16, requires_grad=True)
        lengths = torch.empty(1, dtype=torch.int32) if padded else None
        row_keys = torch.empty(1, 2, length, dtype=torch.int32) if dropped else None
        ops.attention(projected, 2, lengths, P if dropped else 0.0, row_keys)
    ours = {name.removeprefix("dsmm::") for name in called.counts if "dsmm::" in name}
    return storage_bytes(saved), ours


@pytest.mark.parametrize("length", [64, 512])
def test_a_gpu_keeps_what_has_a_number_for_each_pair_once_and_only_with_dropout(length):
    """One of our operators stands for torch's where there is no dropout."""
    probs = 2 * length * length * 2
    row_keys = 2 * length * 4
    projected = length * 6 * 64 * 2
    lengths = 4
    with_dropout = kept_and_called("cuda", dropped=True, length=length)
    assert with_dropout == (probs + projected + row_keys, {"masked_softmax"})
    padded = kept_and_called("cuda", padded=True, length=length)
    assert padded == (projected + lengths, {"attention"})
    assert kept_and_called("cuda", length=length) == (projected, {"attention"})


@pytest.mark.parametrize("dtype, heads", [(torch.bfloat16, 1), (torch.float16, 2)])
def test_a_forecast_has_keys_for_each_head_where_flash_may_be_missing(dtype, heads):
    saved = []
    with torch.device("meta"), ops.meta_stands_for("cuda"), saving_to(saved):
        keys_values = torch.empty(1, 8, 2 * 64, dtype=dtype, requires_grad=True)
        queries = torch.empty(1, 8, 2 * 64, dtype=dtype, requires_grad=True)
        ops.window_attention(keys_values, queries, 2, torch.arange(8), (None, 0))
    positions = 8 * 8
    assert storage_bytes(saved) == (2 * heads + 2) * 8 * 64 * 2 + positions


def test_doctor_says_what_serves_on_gpus():
    with ops.meta_stands_for("cuda"):
        assert ops.backend("attention", "meta", torch.float16).startswith("torch (flash or cuDNN,")


def test_nan_is_not_hidden():
    scores = torch.zeros(1, 1, 1, 40)
    scores[..., 3] = torch.nan
    lengths = torch.tensor([40], dtype=torch.int32)
    assert ops.masked_softmax(scores, None, 1.0).isnan().all()
    assert ops.masked_softmax(scores, lengths, 1.0).isnan().all()


def test_scores_beyond_the_range_of_fp16_are_scaled_in_time():
    packed = torch.full((1, 4, 3 * 64), 50.0, dtype=torch.float16)  # queries · keys are 160,000
    assert (unfused_attention(packed, None, 1, None, 0.0, None) == 50).all()
