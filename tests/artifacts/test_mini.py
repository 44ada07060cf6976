"""Mini-models: prefixes with their head, new layers on a prefix."""

import pytest
import torch

from ds_minimodel.artifacts.mini import is_layer_from, prefix, with_new_layers
from ds_minimodel.artifacts.models import BodyArtifact
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.modern import ModernBertConfig
from tests.small_models import masked_lm

from ..models.model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise


def make_model(num_layers, *head_depths):
    return randomise(masked_lm(body_config(num_layers), VOCAB_SIZE, *head_depths))


def artifact_of(model):
    return BodyArtifact(model.body.config, model.body.head_depths, model.body.state_dict(), "space")


def model_of(artifact, pack):
    """A model with the body of `artifact`, every tensor of which must fit, and no other."""
    model = masked_lm(artifact.config, VOCAB_SIZE, *artifact.head_depths)
    model.body.load_state_dict(artifact.tensors)
    model.pack.load_state_dict(pack.state_dict())
    return model


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_prefix_gives_the_loss_of_the_head_at_its_depth(depth):
    body = make_model(4, 1, 2, 4)
    mini = prefix(artifact_of(body), depth)
    assert mini.config.num_layers == depth
    assert mini.head_depths == (depth,)
    assert mini.space == "space"
    batch = mlm_batch()
    whole = body(batch)[(1, 2, 4).index(depth)]
    torch.testing.assert_close(model_of(mini, body.pack)(batch)[0], whole, rtol=1e-6, atol=0)


def test_new_layers_lie_between_the_bottom_of_the_body_and_its_head():
    body = make_model(4, 4)
    mini = with_new_layers(artifact_of(body), 2, 3, seed=1)
    assert mini.config.num_layers == 5
    assert mini.head_depths == (5,)
    assert mini.space == "space"
    model_of(mini, body.pack)
    old = body.body.state_dict()
    for name, tensor in mini.tensors.items():
        if is_layer_from(name, 2):
            assert name not in old or not tensor.equal(old[name]), name
        else:
            assert tensor.equal(old[name.replace("heads.5.", "heads.4.")]), name
    new = {name: tensor for name, tensor in mini.tensors.items() if is_layer_from(name, 2)}
    assert {name.split(".")[1] for name in new} == {"2", "3", "4"}
    assert abs(new["layers.2.ffn_in.weight"].std() / INIT_STD - 1) < 0.15
    assert not new["layers.2.ffn_in.weight"].equal(new["layers.3.ffn_in.weight"])


def test_new_layers_may_start_as_the_bodys_last():
    body = artifact_of(make_model(5, 5))
    mini = with_new_layers(body, 1, 2, seed=1, copies_last=True)
    for name, tensor in mini.tensors.items():
        for ours, source in (
            ("layers.1.", "layers.3."),
            ("layers.2.", "layers.4."),
            ("heads.3.", "heads.5."),
        ):
            if name.startswith(ours):
                assert tensor.equal(body.tensors[name.replace(ours, source)]), name


def test_copies_keep_their_place_in_the_pattern_of_layers():
    """ModernBERT's global layers start as global ones: layer 3 as layer 6, the last that is global,
    of seven.
    """
    config = ModernBertConfig(
        num_layers=7, hidden_size=16, num_heads=2, ffn_size=24, max_positions=14
    )
    body = artifact_of(randomise(masked_lm(config, VOCAB_SIZE)))
    mini = with_new_layers(body, 2, 2, seed=1, copies_last=True)
    for layer, source in ((2, 5), (3, 6)):
        assert mini.tensors[f"layers.{layer}.qkv.weight"].equal(
            body.tensors[f"layers.{source}.qkv.weight"]
        )
