"""Bodies and language packs on disk: round trips, packs of another body, damage."""

import json
from dataclasses import replace

import pytest
import torch
from model_cases import VOCAB_SIZE, body_config, mlm_batch, randomise

from ds_minimodel.artifacts.adaptation import load_adaptation, plug, save_adaptation
from ds_minimodel.artifacts.models import Adaptation, BodyArtifact, load_body, save_body, space_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest, write_manifest
from ds_minimodel.common.vocabulary import Vocabulary
from tests.small_models import masked_lm

TOKENIZER = b"stands for a SentencePiece model"


@pytest.fixture
def model():
    return randomise(masked_lm(body_config(3, 0.1, 0.2), VOCAB_SIZE, 2, 3))


@pytest.fixture
def body(model):
    return BodyArtifact(model.body.config, model.body.head_depths, model.body.state_dict(), "space-1")


@pytest.fixture
def pack(model):
    return Adaptation("de", model.pack.state_dict(), "space-1", steps=5, eflops=0.5)


@pytest.fixture
def saved(tmp_path, body, pack):
    """A folder with a body and a pack."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.model").write_bytes(TOKENIZER)
    write_manifest(tmp_path / "tokenizer", **Vocabulary(VOCAB_SIZE - 1, eos=2).facts())
    save_body(tmp_path / "body", body, "body", steps=7)
    save_adaptation(tmp_path / "pack", pack, tmp_path / "tokenizer")
    (tmp_path / "theirs").mkdir()
    return tmp_path


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype and got[name].equal(tensor), name


def test_round_trip(saved, body, pack):
    loaded = load_body(saved / "body")
    assert replace(loaded, tensors={}) == replace(body, tensors={})
    assert_equal(loaded.tensors, body.tensors)
    plugged = load_adaptation(saved / "pack", "space-1", "de", 5)
    assert replace(plugged, tensors={}) == replace(pack, tensors={})
    assert_equal(plugged.tensors, pack.tensors)
    assert (saved / "pack" / "tokenizer.model").read_bytes() == TOKENIZER


def test_manifests_carry_the_facts(saved):
    manifest = read_manifest(saved / "pack", verify=True)
    assert manifest.pop("files").keys() == {"embeddings.safetensors", "tokenizer.model"}
    facts = {"kind": "language-pack", "language": "de", "space": "space-1", "steps": 5, "eflops": 0.5}
    vocabulary = {"vocab_size": VOCAB_SIZE - 1, "special": {"eos": 2}, "lossy": None, "rows": VOCAB_SIZE}
    assert manifest == facts | vocabulary
    manifest = read_manifest(saved / "body", verify=True)
    assert manifest.pop("files").keys() == {"config.json", "model.safetensors"}
    assert manifest == {"kind": "body", "space": "space-1", "steps": 7}


@pytest.mark.parametrize(
    "load, name, of_body, said",
    [
        (load_pack, "pack", ["space-2"], "trained for embedding space space-1, the body has space-2; use a pack"),
        (load_pack, "pack", ["space-1", "tr"], "the pack of language de in the place of that of tr"),
        (load_pack, "pack", ["space-1", "de", 0], "the pack of step 5 in the place of that of 0"),
        (load_pack, "body", [], "a body, not a language pack"),
        (load_body, "pack", [], "a language-pack, not a body"),
        (load_pack, "none", [], "no such folder"),
        (load_body, "none", [], "no such folder"),
        (load_body, ".", [], "no such file, so .* is not a body; give .*body"),
        (load_body, "theirs", [], "is not a body; a model of Hugging Face's is imported first"),
    ],
)
def test_another_artifact_than_asked_for_is_refused(saved, load, name, of_body, said):
    with pytest.raises(UserError, match=said) as refusal:
        load(saved / name, *of_body)
    assert str(saved / name) in str(refusal.value)


@pytest.mark.parametrize(
    "change, key",
    [
        ({"num_layers": 10**9}, "architecture: num_layers: Input should be less than or equal to 10000"),
        ({"kind": "gpt"}, "architecture: kind 'gpt': there are roberta, bert"),
        ({"num_layers": 4}, "layers.3.attention_norm.bias is of shape .16,. by config.json, none in model.safetensors"),
        ({"hidden_size": 10**9}, "architecture: hidden_size"),
        ({"head_depths": [9]}, "there are 3 layers"),
    ],
)
def test_sizes_that_the_weights_have_not_are_refused_before_anything_is_made(saved, change, key):
    path, manifest = saved / "body/config.json", read_manifest(saved / "body")
    config = json.loads(path.read_text())
    (config if "head_depths" in change else config["architecture"]).update(change)
    path.write_text(json.dumps(config))
    del manifest["files"]
    write_manifest(saved / "body", **manifest)
    with pytest.raises(UserError, match=key) as refusal:
        load_body(saved / "body")
    assert "\n" not in str(refusal.value) and str(saved / "body") in str(refusal.value)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
@pytest.mark.parametrize("name", ["body/model.safetensors", "body/config.json", "pack/embeddings.safetensors"])
def test_damage_is_refused_in_one_line(saved, name, damage):
    path = saved / name
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-1] + (b"" if damage == "truncated" else bytes([content[-1] ^ 1])))
    with pytest.raises(UserError) as refusal:
        (load_pack if name.startswith("pack") else load_body)(path.parent)
    assert str(path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_space_is_the_identity_of_the_weights(body, pack):
    space = space_of(body.tensors, pack.tensors)
    copies = {name: body.tensors[name].clone() for name in reversed(body.tensors)}
    assert space == space_of(copies, pack.tensors)
    name = "embedding_norm.weight"
    weight = body.tensors[name]
    one_bit = weight.clone()
    one_bit[3] = torch.nextafter(weight[3], torch.tensor(9.0))
    for other in (one_bit, weight.view(2, -1), weight.view(torch.int32)):
        assert space != space_of({**body.tensors, name: other}, pack.tensors)
    assert space != space_of(body.tensors)


def test_a_plugged_pack_takes_the_place_of_the_models_own(model, pack):
    other = randomise(masked_lm(model.body.config, VOCAB_SIZE, 2, 3), seed=9)
    pack.tensors["body.positions"] = model.body.positions.detach() + 1
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    plug(other, pack)
    after = other.state_dict()
    assert after["pack.tokens"].equal(model.pack.tokens) and after["pack.bias"].equal(model.pack.bias)
    assert after["body.positions"].equal(model.body.positions + 1)
    for name in before.keys() - {"pack.tokens", "pack.bias", "body.positions"}:
        assert after[name].equal(before[name]), name
    assert other(mlm_batch()).isfinite().all()
