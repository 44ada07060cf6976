"""Attention that starts at the neighbours of a token: where it looks, what it leaves alone, what it is for."""

import pytest
import torch

from ds_minimodel.models.roberta.model import FIRST_POSITION
from ds_minimodel.models.roberta.neighbours import OFFSETS, start_at_neighbours
from tests.small_models import masked_lm, roberta


def model(hidden_size=64, num_heads=4, vocab_size=60, start=True):
    torch.manual_seed(1)
    module = masked_lm(roberta(2, hidden_size, num_heads, 2 * hidden_size, 40, 0.0, 0.0), vocab_size)
    if start:
        start_at_neighbours(module.body)
    return module


@pytest.mark.parametrize(("hidden_size", "num_heads"), [(128, 4), (768, 12), (128, 2), (99, 3)])
def test_heads_of_the_lowest_layer_look_at_the_tokens_beside(hidden_size, num_heads):
    module = model(hidden_size, num_heads)
    body, layer = module.body, module.body.layers[0]
    tokens = torch.randint(5, 60, (40,), generator=torch.Generator().manual_seed(2))
    x = body.embedding_norm(module.pack.tokens[tokens] + body.positions[FIRST_POSITION:])
    queries, keys, _ = layer.qkv(x)[0].chunk(3, dim=1)
    for head, offset in enumerate(OFFSETS[:num_heads]):
        part = slice(head * layer.qkv.head_width, (head + 1) * layer.qkv.head_width)
        scores = queries[:, part] @ keys[:, part].T / layer.qkv.head_width**0.5
        inside = torch.arange(2, 38)  # both neighbours exist
        attention = scores.softmax(1)[inside, inside + offset]
        assert attention.mean() > 0.4, (head, offset)


def test_sets_nothing_but_positions_and_the_lowest_layers_queries_and_keys():
    started, random = model().state_dict(), model(start=False).state_dict()
    assert {name for name in random if not torch.equal(started[name], random[name])} == {
        "body.positions",
        "body.layers.0.qkv.weight",
    }
    values = [state["body.layers.0.qkv.weight"].chunk(3)[2] for state in (started, random)]
    assert torch.equal(*values)
    assert not started["body.positions"][FIRST_POSITION - 1].any()
    assert all(torch.equal(tensor, started[name]) for name, tensor in model().state_dict().items())
