"""Mini-models: prefixes with their head, new layers on a prefix, packs that start from overlapping pieces."""

import pytest
import torch
from model_cases import VOCAB_SIZE, assert_same, body_config, losses_and_gradients, mlm_batch, randomise

from ds_minimodel.model.artifacts import BodyArtifact
from ds_minimodel.model.heads import MaskedLanguageModel
from ds_minimodel.model.mini import is_layer_from, overlap_init, prefix, with_new_layers
from ds_minimodel.model.transformer import INIT_STD, PAD


def make_model(config):
    return randomise(MaskedLanguageModel(config, VOCAB_SIZE))


def artifact_of(model):
    return BodyArtifact(model.body.config, model.body.state_dict(), "space")


def model_of(artifact, pack):
    """A model with the body of `artifact`, every tensor of which must fit, and no other."""
    model = MaskedLanguageModel(artifact.config, VOCAB_SIZE)
    model.body.load_state_dict(artifact.tensors)
    model.pack.load_state_dict(pack.state_dict())
    return model


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_prefix_gives_the_loss_of_the_head_at_its_depth(depth):
    body = make_model(body_config(4, (1, 2, 4)))
    mini = prefix(artifact_of(body), depth)
    assert (mini.config.num_layers, mini.config.head_depths, mini.space) == (depth, (depth,), "space")
    batch = mlm_batch()
    whole = body(batch)[(1, 2, 4).index(depth)]
    torch.testing.assert_close(model_of(mini, body.pack)(batch)[0], whole, rtol=1e-6, atol=0)
    # As the training over the whole body at this depth gives it, gradients too.
    assert_same(losses_and_gradients(model_of(mini, body.pack), batch),
                losses_and_gradients(body, {**batch, "depth": depth}), 1e-5)


def test_new_layers_lie_between_the_bottom_of_the_body_and_its_head():
    body = make_model(body_config(4, (4,)))
    mini = with_new_layers(artifact_of(body), 2, 3, seed=1)
    assert (mini.config.num_layers, mini.config.head_depths, mini.space) == (5, (5,), "space")
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


def test_new_layers_are_a_function_of_the_seed_and_leave_the_generator_alone():
    body = artifact_of(make_model(body_config(4, (4,))))
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    first = with_new_layers(body, 2, 1, seed=1).tensors
    assert torch.rand(3).equal(undisturbed)
    again, other = (with_new_layers(body, 2, 1, seed=seed).tensors for seed in (1, 2))
    assert all(first[name].equal(again[name]) for name in first)
    assert not first["layers.2.qkv.weight"].equal(other["layers.2.qkv.weight"])


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE = [*SPECIAL, "▁the", "▁in", "a", "s", ".", "▁house", "<mask>"]
TARGET = [*SPECIAL, ".", "▁in", "▁haus", "▁die", "ü", "s", *(f"▁wort{i}" for i in range(3000)), "<mask>"]


@pytest.fixture
def source_tensors():
    torch.manual_seed(0)
    tokens = torch.randn(len(SOURCE), 16)
    tokens[PAD] = 0.5       # training moves it: the projection of the output is tied to the embeddings
    return {"tokens": tokens, "bias": torch.randn(len(SOURCE))}


def test_overlap_is_by_the_strings_of_pieces(source_tensors):
    tensors, copied = overlap_init(TARGET, SOURCE, source_tensors, seed=3)
    shared = [piece for piece in TARGET if piece in SOURCE]
    assert copied == len(shared) == 8 and {"<s>", "</s>", "<unk>", "<mask>", ".", "▁in", "s"} < set(shared)
    for piece in shared:
        into, out_of = TARGET.index(piece), SOURCE.index(piece)
        assert tensors["bias"][into] == source_tensors["bias"][out_of]
        if piece != "<pad>":
            assert tensors["tokens"][into].equal(source_tensors["tokens"][out_of])
    assert (tensors["tokens"][PAD] == 0).all()


def test_rows_without_a_counterpart_are_drawn(source_tensors):
    tensors, _ = overlap_init(TARGET, SOURCE, source_tensors, seed=3)
    new = [index for index, piece in enumerate(TARGET) if piece not in SOURCE]
    rows = tensors["tokens"][new]
    assert tensors["tokens"].shape == (len(TARGET), 16) and tensors["bias"].shape == (len(TARGET),)
    assert abs(rows.std() / INIT_STD - 1) < 0.02 and abs(rows.mean()) < INIT_STD / 50
    assert (tensors["bias"][new] == 0).all()
    assert len(rows.unique(dim=0)) == len(rows)


def test_overlap_is_a_function_of_the_seed_and_leaves_the_source_alone(source_tensors):
    before = {name: tensor.clone() for name, tensor in source_tensors.items()}
    first, again, other = (overlap_init(TARGET, SOURCE, source_tensors, seed)[0] for seed in (3, 3, 4))
    assert first["tokens"].equal(again["tokens"])
    different = (first["tokens"] != other["tokens"]).any(1)
    assert different.sum() == len(TARGET) - 8
    assert all(tensor.equal(before[name]) for name, tensor in source_tensors.items())
