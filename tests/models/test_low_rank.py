"""Low-rank updates: what trains with them is what their merged weights compute, in every kind of
body.
"""

import contextlib
import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise, read_everywhere
from torch.autograd import gradcheck
from torch.testing import assert_close

from ds_minimodel import ops
from ds_minimodel.common.vocabulary import IGNORED
from ds_minimodel.models import body
from ds_minimodel.models.low_rank import add_low_rank, is_low_rank, updated
from ds_minimodel.models.modern import FAMILIES
from ds_minimodel.models.trainable import LanguageModel, encode
from tests.saved import saved_bytes
from tests.small_models import masked_lm

SIZES: Any = dict(num_layers=2, hidden_size=16, num_heads=2, ffn_size=24, max_positions=16)
CONFIGS = [family(**SIZES | ({"num_kv_heads": 1} if family.causal else {})) for family in FAMILIES]


@pytest.mark.parametrize("config", [body_config(2), *CONFIGS], ids=lambda config: config.kind)
def test_merged_weights_compute_what_the_updates_do(config):
    plain, changed = (randomise(masked_lm(config, VOCAB_SIZE)) for _ in range(2))
    add_low_rank(changed.body, 3, 1)
    for batch in (mlm_batch(), read_everywhere(mlm_batch())):
        assert_close(changed(batch), plain(batch), msg="an update begins as nothing")
    randomise(changed)
    weights = {name: tensor.detach() for name, tensor in changed.body.named_parameters()}
    update = {name: tensor for name, tensor in weights.items() if is_low_rank(name)}
    plain.load_state_dict(
        {name: tensor for name, tensor in changed.state_dict().items() if not is_low_rank(name)}
    )
    for name, tensor in updated(weights, update):
        plain.body.get_parameter(name).data.copy_(tensor)
    for batch in (mlm_batch(), read_everywhere(mlm_batch())):
        assert_close(changed(batch), plain(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("low_rank", [True, False])
@pytest.mark.parametrize(
    "config",
    [CONFIGS[-1], CONFIGS[0].model_copy(update={"dropout": 0.1})],
    ids=lambda config: config.kind,
)
def test_what_cheap_functions_make_is_recomputed(config, low_rank, dtype, monkeypatch):
    """With the gradients that it has where it is kept, and less memory."""
    results = []
    for not_saved in (body._not_saved, lambda *_: contextlib.nullcontext()):
        monkeypatch.setattr(body, "_not_saved", not_saved)
        module = masked_lm(config, VOCAB_SIZE)
        if low_rank:
            add_low_rank(module.body, 3, 1)
        randomise(module).to(dtype)
        live = saved_bytes(module, read_everywhere(mlm_batch()))
        module(read_everywhere(mlm_batch())).sum().backward()
        results.append((live, [parameter.grad for parameter in module.parameters()]))
    (less, gradients), (more, plain) = results
    norms = 1 if config.dropout else 2 * SIZES["num_layers"]
    numbers = SIZES["num_layers"] * SIZES["ffn_size"] + norms * SIZES["hidden_size"]
    assert more - less == numbers * mlm_batch()["tokens"].numel() * dtype.itemsize
    assert all(map(torch.equal, gradients, plain))


def composed(x, weight, bias, lora_A, lora_B, scale):
    return F.linear(x, weight, bias) + scale * F.linear(F.linear(x, lora_A), lora_B)


@pytest.mark.parametrize("bias", [True, False])
def test_the_one_function_has_the_gradients_of_the_products_that_it_joins(bias):
    torch.manual_seed(0)
    shapes = ((2, 5, 12), (8, 12), (8,), (3, 12), (8, 3))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    leaves[2] = leaves[2] if bias else None
    assert gradcheck(lambda *tensors: ops.low_rank_linear(*tensors, 2.0), leaves)
    for dtype, error in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        narrow = [one if one is None else one.detach().to(dtype).requires_grad_() for one in leaves]
        wide = [one if one is None else one.detach().double().requires_grad_() for one in narrow]
        found = ops.low_rank_linear(*narrow, 2.0)
        exact = composed(*wide, 2.0)
        found.square().sum().backward()
        exact.square().sum().backward()
        gradients = [(a.grad, b.grad) for a, b in zip(narrow, wide) if a is not None]
        for one, other in [(found, exact), *gradients]:
            assert (one - other).norm() <= error * other.norm()
    frozen = [
        one if one is None else one.detach().requires_grad_(i > 2) for i, one in enumerate(leaves)
    ]
    ops.low_rank_linear(*frozen, 2.0).sum().backward()
    assert [one is not None and one.grad is not None for one in frozen] == [False] * 3 + [True] * 2


def test_replayed_rows_are_held_to_what_the_body_was():
    """By the divergence over the base's ids; their targets do not count, and a batch without any is
    as ever.
    """
    [config] = [config for config in CONFIGS if config.kind == "llama"]
    model = randomise(LanguageModel(config, VOCAB_SIZE, (2,), num_base=VOCAB_SIZE - 4))
    untouched = copy.deepcopy(model)
    add_low_rank(model.body, 3, 1)
    randomise(model.body, seed=4)
    model.body.load_state_dict(untouched.body.state_dict(), strict=False)
    tokens = torch.randint(VOCAB_SIZE - 4, (4, 12), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 9, 12, 7], dtype=torch.int32)
    batch = {"tokens": tokens, "targets": tokens.roll(-1, 1), "lengths": lengths}
    batch["targets"][torch.arange(12) >= batch["lengths"][:, None] - 1] = IGNORED
    plain = model(batch)
    model.replay_kl = 9.0
    assert model(batch).equal(plain)
    batch["replayed"] = torch.tensor([False, True, False, True])
    with torch.no_grad():
        assert model(batch).equal(plain), "an evaluation has the loss of every row"
    found = model(batch)

    def scores(model):
        (x_BSH,), table = encode(model.pack, model.body, batch)
        rows = torch.cat((table.base, table.rows))
        return (model.body.heads["2"](x_BSH) @ rows.T).log_softmax(-1)

    student = scores(model)
    kept = model.pack.num_base
    with torch.no_grad():
        (x_BSH,), table = encode(untouched.pack, untouched.body, batch)
        teacher = (untouched.body.heads["2"](x_BSH) @ table.base.T).log_softmax(-1)
    is_target = batch["targets"] != IGNORED
    text = is_target & ~batch["replayed"][:, None]
    again = is_target & batch["replayed"][:, None]
    nats = -student[text].gather(1, batch["targets"][text][:, None]).sum()
    divergence = (teacher.exp() * (teacher - student[..., :kept]))[again].sum()
    assert_close(found, (nats + divergence)[None], rtol=1e-4, atol=1e-4)
    trained = [parameter for name, parameter in model.body.named_parameters() if is_low_rank(name)]
    gradients = (
        torch.autograd.grad(found, trained),
        torch.autograd.grad(nats + 9 * divergence, trained),
    )
    for gradient, expected in zip(*gradients, strict=True):
        assert_close(gradient, expected, rtol=1e-3, atol=1e-4)
