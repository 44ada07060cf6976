"""Low-rank updates: what trains with them is what their merged weights compute, in every kind of body."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise, read_everywhere
from torch.autograd import gradcheck

from ds_minimodel import ops
from ds_minimodel.models.low_rank import add_low_rank, merged
from ds_minimodel.models.modern import FAMILIES
from tests.small_models import masked_lm

SIZES: Any = dict(num_layers=2, hidden_size=16, num_heads=2, ffn_size=24, max_positions=16)
CONFIGS = [own.config(**SIZES | ({"num_kv_heads": 1} if own.config.causal else {})) for own in FAMILIES]


@pytest.mark.parametrize("config", [body_config(2), *CONFIGS], ids=lambda own: own.kind)
def test_merged_weights_compute_what_the_updates_do(config):
    plain, updated = (randomise(masked_lm(config, VOCAB_SIZE)) for _ in range(2))
    add_low_rank(updated.body, 3, 1)
    for batch in (mlm_batch(), read_everywhere(mlm_batch())):
        torch.testing.assert_close(updated(batch), plain(batch), msg="an update begins as nothing")
    randomise(updated)
    weights = {name: tensor.detach() for name, tensor in updated.named_parameters()}
    found = merged(weights, {name.removeprefix("body."): tensor for name, tensor in weights.items()})
    plain.load_state_dict(found)
    for batch in (mlm_batch(), read_everywhere(mlm_batch())):
        torch.testing.assert_close(updated(batch), plain(batch), rtol=1e-4, atol=1e-4)


def composed(x, weight, bias, down, up, scale):
    return F.linear(x, weight, bias) + scale * F.linear(F.linear(x, down), up)


@pytest.mark.parametrize("bias", [True, False])
def test_the_one_function_has_the_gradients_of_the_products_that_it_joins(bias):
    torch.manual_seed(0)
    shapes = ((2, 5, 12), (8, 12), (8,), (3, 12), (8, 3))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    leaves[2] = leaves[2] if bias else None
    assert gradcheck(lambda *own: ops.low_rank_linear(*own, 2.0), leaves)
    for dtype, error in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        own = [one if one is None else one.detach().to(dtype).requires_grad_() for one in leaves]
        wide = [one if one is None else one.detach().double().requires_grad_() for one in own]
        found, exact = ops.low_rank_linear(*own, 2.0), composed(*wide, 2.0)
        found.square().sum().backward(), exact.square().sum().backward()
        of = [(found, exact), *((a.grad, b.grad) for a, b in zip(own, wide) if a is not None)]
        assert all((one - other).norm() <= error * other.norm() for one, other in of)
    frozen = [one if one is None else one.detach().requires_grad_(i > 2) for i, one in enumerate(leaves)]
    ops.low_rank_linear(*frozen, 2.0).sum().backward()
    assert [one is not None and one.grad is not None for one in frozen] == [False] * 3 + [True] * 2
