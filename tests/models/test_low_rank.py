"""Low-rank updates: what trains with them is what their merged weights compute, in every kind of body."""

from typing import Any

import pytest
import torch
from model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise, read_everywhere

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
