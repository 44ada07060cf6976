"""Answers of one body in many languages are those of a model built for the one language."""

import sys

import pytest
import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.models.artifacts import load_body, load_pack, plug
from ds_minimodel.models.trainable import load_into
from ds_minimodel.serve.predictor import Predictor, beside
from ds_minimodel.tasks import KINDS
from tests.small_models import masked_lm

from .conftest import LABELS


def packs_of(family):
    return {"de": family.de, "zh": family.zh}


def plain_model(family, name, language):
    """A model with one pack plugged in by the artifacts' own function."""
    artifact, pack = load_body(family.root / name), load_pack(family.root / language)
    rows = len(pack.tensors["tokens"])
    if artifact.task:
        model = KINDS[name].module(artifact.config, rows, artifact.task["labels"])
        load_into(model, artifact.tensors)
    else:
        model = masked_lm(artifact.config, rows, *artifact.head_depths)
        load_into(model, artifact.tensors, "body.")
    plug(model, pack)
    return model.eval(), open_tokenizer(family.root / language)


SENTENCES = [
    ("de", "der Hund läuft"),
    ("zh", "小狗"),
    ("de", "die grüne Wiese bellt laut und schnell"),
    ("zh", "今天的天气很好"),
    ("de", ""),
]


def test_each_request_is_answered_in_its_language_and_place(family):
    requests = [{"language": language, "text": text} for language, text in SENTENCES]
    answers = Predictor(family.classification, packs_of(family)).predict(requests)
    for (language, text), answer in zip(SENTENCES, answers, strict=True):
        model, tokenizer = plain_model(family, "classification", language)
        ids = torch.tensor([[0, *tokenizer.encode([text])[0], 2]])
        with torch.no_grad():
            shares = model.logits({"tokens": ids, "read": torch.zeros(1, 1, dtype=torch.int64)})[0].softmax(-1)
        assert list(answer["scores"]) == LABELS and answer["label"] == LABELS[int(shares.argmax())]
        torch.testing.assert_close(torch.tensor(list(answer["scores"].values())), shares, rtol=1e-4, atol=1e-5)


def test_answers_are_pieces_of_the_context(family):
    context = "今天的天气很好 我们去公园玩 " * 20  # longer than a window
    requests = [
        {"language": "zh", "question": "天气", "context": context},
        {"language": "de", "question": "wer?", "context": "der kleine Hund läuft schnell"},
    ]
    for request, answer in zip(requests, Predictor(family.qa, packs_of(family)).predict(requests), strict=True):
        assert answer["answer"] and answer["answer"] in request["context"] and isinstance(answer["score"], float)


@pytest.mark.parametrize("depth", [1, 3])
def test_masks_are_filled_by_the_head_at_a_depth(family, depth):
    predictor = Predictor(family.body, packs_of(family), depth, top=3)
    short, answer = predictor.predict(
        [
            {"language": "de", "text": "<mask> Hund"},
            {"language": "de", "text": "der <mask> läuft über die <mask> Wiese"},
        ]
    )
    model, tokenizer = plain_model(family, "body", "de")
    parts = tokenizer.encode(["der", "läuft über die", "Wiese"])
    ids = [0, *parts[0], tokenizer.vocabulary.mask, *parts[1], tokenizer.vocabulary.mask, *parts[2], 2]
    with torch.no_grad():
        hidden = model.body(model.pack(torch.tensor([ids]))[0], None, model.body.dropout(None))
        x_BSH = hidden[model.body.head_depths.index(depth)]
        shares = (model.body.heads[str(depth)](x_BSH[0]) @ model.pack.tokens.T + model.pack.bias).softmax(-1)
    places = [place for place, id in enumerate(ids) if id == tokenizer.vocabulary.mask]
    assert len(short["masks"]) == 1 and len(answer["masks"]) == 2
    for place, found in zip(places, answer["masks"], strict=True):
        expected, best = shares[place].topk(3)
        assert [row["piece"] for row in found] == [tokenizer.pieces()[id] for id in best]
        assert [row["probability"] for row in found] == pytest.approx(expected.tolist(), rel=1e-3)


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"language": "fr", "text": "a"}, "request 2: no pack for language 'fr'; there are de, zh"),
        ({"text": "a"}, "request 2: no language is named"),
        ({"language": "de", "txt": "a"}, "request 2: no 'text'; there are: language, txt"),
        ({"language": "de", "text": 7}, "request 2: 'text' is 7, not text"),
        ({"language": "de", "text": "\ud800"}, "request 2: 'text' holds half a surrogate pair"),
        ({"language": ["de"], "text": "a"}, "request 2: no pack for language"),
        (["a"], "request 2: .* is not an object with text"),
    ],
)
def test_a_wrong_request_is_named(family, request_, message):
    predictor = Predictor(family.classification, packs_of(family))
    with pytest.raises(UserError, match=message):
        predictor.predict([{"language": "de", "text": "a"}, request_])


def test_a_mask_beyond_the_models_length_is_refused(family):
    predictor = Predictor(family.body, {"de": family.de})
    with pytest.raises(UserError, match="has a <mask> beyond the 48 tokens"):
        predictor.predict([{"text": "der Hund " * 50 + "<mask>"}])
    assert len(predictor.predict([{"text": "<mask> " + "der Hund " * 50}])[0]["masks"]) == 1


def test_models_and_packs_that_do_not_fit_are_refused(family, other_family):
    with pytest.raises(UserError, match="trained for embedding space fedc.* the body has 0123"):
        Predictor(family.classification, {"de": other_family.de})
    with pytest.raises(UserError, match=r"no language-model head of depth 2; it has heads of \[1, 3\]"):
        Predictor(family.body, packs_of(family), depth=2)
    with pytest.raises(UserError, match="a task model has one head"):
        Predictor(family.qa, packs_of(family), depth=1)
    with pytest.raises(UserError, match="--top 0: there must be at least 1"):
        Predictor(family.body, packs_of(family), top=0)
    with pytest.raises(UserError, match="no language pack"):
        Predictor(family.qa, beside(family.qa))


def test_a_body_is_asked_by_transformers(family, monkeypatch):
    """Where it is not installed the extra is named; a task model does without."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "ds_minimodel.hf.convert", raising=False)
    with pytest.raises(UserError, match=r"transformers.* is not installed; pip install 'ds_minimodel\[hf\]'"):
        Predictor(family.body, {"de": family.de})
    assert Predictor(family.classification, {"de": family.de}).predict([{"text": "der Hund"}])
