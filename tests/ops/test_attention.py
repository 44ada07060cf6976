"""Attention against torch's own; what rows without keys give; which way serves where, and what it keeps."""

import pytest
import torch
import torch.nn.functional as F
from op_cases import P, cases, row_keys_of
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.costs.tracing import saving_to, storage_bytes
from ds_minimodel.ops.attention import (
    _backward_reference,
    _forward_reference,
    around_softmax,
    fused_attention,
    torch_attention,
)
from ds_minimodel.ops.window import torch_window_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_a_sample_without_keys_attends_to_nothing():
    probs = ops.masked_softmax(torch.randn(2, 1, 3, 5), torch.tensor([0, 2], dtype=torch.int32), 1.0)
    assert (probs[0] == 0).all() and (probs[1, ..., 2:] == 0).all()
    torch.testing.assert_close(probs[1].sum(-1), torch.ones(1, 3))


def without_dropout(projected, queries, num_heads, lengths, p, row_keys):
    return torch_attention(projected, queries, num_heads, lengths)


@pytest.mark.parametrize("way", [fused_attention, around_softmax, without_dropout])
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


def kept_and_called(device, *, padded=False, dropped=False, length=64):
    """Bytes kept for the backward pass with two heads of 64 in fp16, and the operators called, on such a device."""
    saved = []
    with torch.device("meta"), ops.meta_stands_for(device), Called() as called, saving_to(saved):
        projected = torch.empty(1, length, 6 * 64, dtype=torch.float16, requires_grad=True)
        lengths = torch.empty(1, dtype=torch.int32) if padded else None
        row_keys = torch.empty(1, 2, length, dtype=torch.int32) if dropped else None
        ops.attention(projected, 2, lengths, P if dropped else 0.0, row_keys)
    return storage_bytes(saved), called.names


@pytest.mark.parametrize("length", [64, 512])
def test_a_gpu_keeps_what_has_a_number_for_each_pair_once_and_only_with_dropout(length):
    scores, keys, projected = 2 * length * length * 2, 2 * length * 4, length * 6 * 64 * 2
    assert kept_and_called("cuda", dropped=True, length=length) == (scores + projected + keys, {"masked_softmax"})
    for padded in (True, False):  # one of our operators stands for torch's
        assert kept_and_called("cuda", padded=padded, length=length) == (projected + 4 * padded, {"attention"})


def test_doctor_says_what_serves_on_gpus():
    with ops.meta_stands_for("cuda"):
        assert ops.backend("attention", "meta", torch.float16).startswith("torch (flash or memory-efficient;")


def test_nan_is_not_hidden():
    scores = torch.zeros(1, 1, 1, 40)
    scores[..., 3] = torch.nan
    assert ops.masked_softmax(scores, None, 1.0).isnan().all()
