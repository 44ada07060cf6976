"""Attention against torch's own; what rows without keys give; which way serves where, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F
from op_cases import P, cases, packed, row_keys_of
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.ops import loading
from ds_minimodel.ops.attention import (
    _backward_reference,
    _forward_reference,
    _torch_fused_attention,
    around_softmax,
    compiled_attention,
    flash_attention,
)
from ds_minimodel.ops.window import torch_window_attention
from ds_minimodel.planning.tracing import saving_to, storage_bytes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_equals_scaled_dot_product_attention(dtype, tolerance):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 40, 16, dtype=dtype)
    lengths = torch.tensor([40, 23], dtype=torch.int32)
    mask = (torch.arange(40) < lengths[:, None])[:, None, None, :]
    expected = F.scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(
        ops.attention(packed(q, k, v), 3, lengths), packed(expected), atol=tolerance, rtol=tolerance
    )
    expected = F.scaled_dot_product_attention(q[:, :, :5], k, v)
    got = ops.attention(packed(k, v), 3, None, queries=packed(q[:, :, :5]))
    torch.testing.assert_close(got, packed(expected), atol=tolerance, rtol=tolerance)


def test_a_sample_without_keys_attends_to_nothing():
    probs = ops.masked_softmax(torch.randn(2, 1, 3, 5), torch.tensor([0, 2], dtype=torch.int32), 1.0)
    assert (probs[0] == 0).all() and (probs[1, ..., 2:] == 0).all()
    torch.testing.assert_close(probs[1].sum(-1), torch.ones(1, 3))


def without_dropout(projected, queries, num_heads, lengths, p, row_keys):
    return _torch_fused_attention(projected, queries, num_heads, lengths)


@pytest.mark.parametrize("way", [compiled_attention, around_softmax, flash_attention, without_dropout])
@pytest.mark.parametrize("others", [False, True])
def test_lengths_of_0_are_right_on_every_way(way, others, monkeypatch):
    """Of the first sample, of the middle one and of none; torch's kernels never see a row without keys."""
    torch.manual_seed(0)
    masks = []

    def attend(q, k, v, attn_mask=None, torchs=F.scaled_dot_product_attention):
        masks.append(attn_mask)
        return torchs(q, k, v, attn_mask=attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    projected = torch.randn(3, 40, (2 if others else 3) * 32, device=DEVICE).requires_grad_()
    queries = torch.randn(3, 5, 32, device=DEVICE).requires_grad_() if others else None
    p, row_keys = (0.0, None) if way is without_dropout else (P, row_keys_of(3, 2, 5 if others else 40).to(DEVICE))
    for lengths in ([0, 40, 23], [40, 0, 1], [0, 0, 0]):
        lengths_B = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        leaves = [leaf for leaf in (projected, queries) if leaf is not None]
        exact = [None if x is None else x.detach().double() for x in (projected, queries)]
        exact += [2, lengths_B, p, row_keys]
        got = way(projected, queries, 2, lengths_B, p, row_keys)
        grad = torch.randn_like(got)
        ours = [got, *torch.autograd.grad(got, leaves, grad)]
        for one, other in zip(ours, (_forward_reference(*exact), *_backward_reference(grad.double(), *exact))):
            torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
            assert not one[lengths_B == 0].any()
    assert all(mask.any(-1).all() for mask in masks) and bool(masks) == (way is without_dropout)


def test_windows_by_torchs_kernel_equal_the_reference():
    for inputs in cases("window_attention", torch.float32, 16):
        exact = [x.double() if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs]
        *_, row_keys, _ = inputs
        if row_keys is None:
            expected = torch.ops.dsmm_reference.window_attention(*exact)
            torch.testing.assert_close(torch_window_attention(*inputs).double(), expected, atol=1e-5, rtol=0)


class Called(TorchDispatchMode):
    """Names of the operators of ours that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        if op.namespace == "dsmm":
            self.names.add(op._schema.name.removeprefix("dsmm::"))
        return op(*arguments, **(options or {}))


def kept_and_called(capability, dtype, width, *, padded=False, dropped=False, length=64):
    """Bytes kept for the backward pass with two heads, and the operators called, on a GPU of this capability or, where
    it is None, on a CPU."""
    saved, device = [], ("cuda", capability) if capability else ("cpu",)
    with torch.device("meta"), ops.meta_stands_for(*device), Called() as called, saving_to(saved):
        projected = torch.empty(1, length, 6 * width, dtype=dtype, requires_grad=True)
        lengths = torch.empty(1, dtype=torch.int32) if padded else None
        row_keys = torch.empty(1, 2, length, dtype=torch.int32) if dropped else None
        ops.attention(projected, 2, lengths, P if dropped else 0.0, row_keys)
    return storage_bytes(saved), called.names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 33, 64, 96, 128])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_triton_serves_new_gpus(capability, width, dtype):
    for padded, dropped in ((True, False), (False, True), (True, True)):
        assert kept_and_called(capability, dtype, width, padded=padded, dropped=dropped)[1] == {"flash_attention"}


@pytest.mark.parametrize(
    "capability, dtype, width, reason",
    [
        ((7, 0), torch.float16, 64, "Triton needs sm_80, this is sm_70"),
        ((7, 5), torch.float16, 64, "Triton needs sm_80, this is sm_75"),
        ((9, 0), torch.float32, 64, "Triton takes fp16 and bf16, not torch.float32"),
        ((9, 0), torch.float16, 8, "Triton takes heads 16 to 128 wide, not 8"),
        ((9, 0), torch.float16, 160, "Triton takes heads 16 to 128 wide, not 160"),
    ],
)
def test_products_serve_the_others(capability, dtype, width, reason):
    assert kept_and_called(capability, dtype, width, dropped=True)[1] == {"masked_softmax"}
    with ops.meta_stands_for("cuda", capability):
        assert loading.why_not_triton(torch.device("meta"), dtype, width) == reason


@pytest.mark.parametrize("length", [64, 512])
def test_what_has_a_number_for_each_query_and_key_is_kept_once_or_not_at_all(length):
    scores, keys = 2 * length * length * 2, 2 * length * 4
    projected = length * 6 * 64 * 2
    kept, _ = kept_and_called((7, 5), torch.float16, 64, dropped=True, length=length)
    assert kept == scores + projected + keys
    kept, _ = kept_and_called((8, 0), torch.float16, 64, dropped=True, length=length)
    assert kept == projected + projected // 3 + 2 * keys  # the output, and a number for each row


def test_doctor_says_why_triton_does_not_serve(monkeypatch):
    for capability, words in (((8, 0), "Triton ("), ((7, 5), "torch (flash or memory-efficient;")):
        with ops.meta_stands_for("cuda", capability):
            assert ops.backend("attention", "meta", torch.float16).startswith(words)
    if not torch.cuda.is_available():
        monkeypatch.setattr(loading, "_serving", {})
        assert loading.load_triton().startswith("Triton does not load: ")
    monkeypatch.setenv("DSMM_OPS", "reference")
    monkeypatch.setattr(loading, "_serving", {})
    assert "DSMM_OPS=reference" in loading.load_triton()


def test_nan_is_not_hidden():
    scores = torch.zeros(1, 1, 1, 40)
    scores[..., 3] = torch.nan
    assert ops.masked_softmax(scores, None, 1.0).isnan().all()
