"""Vectors of sentences are the hidden states of a model built for the one language."""

import numpy as np
import pytest
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.models.artifacts import load_body, load_pack
from ds_minimodel.serve import embedder as module
from ds_minimodel.serve.embedder import Embedder
from ds_minimodel.serve.packs import plugged_module

from .test_predictor import SENTENCES, packs_of, plain_model


@pytest.mark.parametrize("pool, depth", [("mean", None), ("first", None), ("mean", 2)])
@pytest.mark.parametrize("name", ["body", "classification"])
def test_vectors_are_hidden_states_of_length_1(family, name, pool, depth):
    embedder = Embedder(family.root / name, packs_of(family), pool, depth)
    for language in ("de", "zh", "de"):  # zh replaces the positions, which are put back
        texts = [text for of, text in SENTENCES if of == language]
        model, tokenizer = plain_model(family, name, language)
        vectors = embedder.embed(texts, language)
        assert vectors.shape == (len(texts), 16) and vectors.dtype == np.float32
        for text, vector in zip(texts, vectors, strict=True):
            ids = torch.tensor([[0, *tokenizer.encode([text])[0], 2]])
            with torch.no_grad():
                (x_BSH,) = model.body(model.pack(ids)[0], None, model.body.dropout(None), None, (depth or 3,))
            expected = x_BSH[0, 0] if pool == "first" else x_BSH[0].mean(0)
            torch.testing.assert_close(torch.from_numpy(vector), expected / expected.norm(), rtol=1e-4, atol=1e-5)


def test_parts_and_order_change_rounding_alone(family, monkeypatch):
    embedder = Embedder(family.body, {"de": family.de})
    texts = ["der Hund " * number for number in range(1, 12)]
    whole = embedder.embed(texts)
    assert np.array_equal(embedder.embed(texts), whole)  # the same texts: the same bits
    assert embedder.embed([]).shape == (0, 16)
    np.testing.assert_allclose(embedder.embed(texts[::-1])[::-1], whole, atol=1e-5)
    monkeypatch.setattr(module, "_PART", 3)
    np.testing.assert_allclose(embedder.embed(texts), whole, atol=1e-5)


def test_what_does_not_fit_is_refused(family, other_family):
    for arguments, message in (
        ((family.body, {"de": other_family.de}), "trained for embedding space fedc.* the body has 0123"),
        ((family.body, {}), "no language pack"),
        ((family.body, packs_of(family), "max"), "--pool max: there are mean and first"),
        ((family.body, packs_of(family), "mean", 4), "--depth 4: .*body has 3 layers"),
        ((family.body, packs_of(family), "mean", 0), "--depth 0"),
    ):
        with pytest.raises(UserError, match=message):
            Embedder(*arguments)
    embedder = Embedder(family.body, packs_of(family))
    for arguments, message in (
        ((["a"],), "texts: no language is named; there are de, zh"),
        ((["a"], "fr"), "no pack for language 'fr'; there are de, zh"),
        ((["a", "\0"], "de"), "text 2: 'text' holds a NUL"),
        ((["a", 7], "de"), "text 2: 'text' is 7, not text"),
    ):
        with pytest.raises(UserError, match=message):
            embedder.embed(*arguments)


def test_a_plugged_module_is_the_body_with_the_pack(family, other_family):
    body, pack = load_body(family.body), load_pack(family.zh)
    model, (plain, _) = plugged_module(body, pack), plain_model(family, "body", "zh")
    assert not model.training
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(body.tensors["positions"], model.body.positions)  # the body itself stays as it is
    with pytest.raises(UserError, match="the pack of de: this pack was trained for embedding space fedc"):
        plugged_module(body, load_pack(other_family.de))
    with pytest.raises(UserError, match="a task model has a head of its own"):
        plugged_module(load_body(family.qa), pack)
