"""Models of sentence-transformers: equal vectors in and out, and refusals by name."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.evaluation.packs import open_pack, plugged_module
from ds_minimodel.evaluation.sentences import encode_texts
from ds_minimodel.export.folder import export_hf
from ds_minimodel.tokenizers.extension import extend_tokenizer

from .conftest import ODD_TEXTS, TEXTS
from .sentence_models import make_encoder, save_classifier, save_sentence_model

LONG = " ".join(TEXTS)  # that every tiny model cuts
LINES = [*TEXTS, *(text for text in ODD_TEXTS if text.strip()), LONG, "a", LONG.upper()]
MODELS = {
    "mean": ("bert-uncased", {}),
    "cls": ("bert-uncased", {"pooling": "cls"}),
    "cased": ("bert-cased", {"normalise": False}),
    "lower-case": ("bert-cased", {"do_lower_case": True}),
    "cut": ("bert-uncased", {"max_seq_length": 20}),
    "dense": ("bert-uncased", {"dense": 12}),
    "dense-at-the-end": ("roberta", {"dense": 12, "normalise": False, "max_seq_length": 60}),
    "roberta": ("roberta", {"max_seq_length": 60}),
    "xlm-r": ("xlm-r", {"max_seq_length": 60}),
    "xlm-r-cls": ("xlm-r", {"pooling": "cls", "max_seq_length": 60}),
    "modernbert": ("modernbert", {}),
    "modernbert-cls": ("modernbert", {"pooling": "cls"}),
}


@pytest.fixture(scope="module")
def encoders(text_file, unigram_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    families = {family for family, _ in MODELS.values()}
    return {
        family: make_encoder(family, text_file, unigram_folder, folder / family)
        for family in families
    }


@pytest.fixture(scope="module", params=MODELS)
def base(request, encoders, tmp_path_factory):
    """(sentence-transformers' folder, ours)."""
    family, settings = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    save_sentence_model(encoders[family], folder / "theirs", **settings)
    refer(folder / "theirs", folder / "ours", "en")
    return folder / "theirs", folder / "ours"


def our_vectors(model, pack=None, texts=LINES):
    body, _ = load_model(model)
    language, tokenizer = open_pack(pack or model, body, model)
    return encode_texts(plugged_module(body, language), tokenizer, texts)


def their_vectors(folder, texts=LINES):
    return SentenceTransformer(str(folder), device="cpu").encode(texts)


def test_vectors_are_those_of_sentence_transformers(base):
    theirs, ours = base
    np.testing.assert_allclose(our_vectors(ours), their_vectors(theirs), atol=1e-5)


CLASSIFIERS = {
    "bert": ("bert-uncased", {}),
    "roberta": ("roberta", {}),
    "xlm-r": ("xlm-r", {}),
    "modernbert": ("modernbert", {}),
    "modernbert-mean": ("modernbert", {"classifier_pooling": "mean"}),
    "cross-encoder": ("bert-uncased", {"labels": 1}),
    "several labels": ("roberta", {"problem_type": "multi_label_classification"}),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_scores_are_those_of_transformers(name, encoders, tmp_path):
    family, settings = CLASSIFIERS[name]
    save_classifier(encoders[family], tmp_path / "theirs", family, **settings)
    refer(tmp_path / "theirs", tmp_path / "ours", "en")
    pack = extended(tmp_path / "ours", tmp_path)
    export_hf(tmp_path / "ours", tmp_path / "out", pack)
    length = load_model(tmp_path / "ours")[0].config.head.max_length
    for folder, language in (("theirs", None), ("out", pack)):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / folder)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / folder)
        inputs = tokenizer(
            LINES, truncation=True, max_length=length, padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            scores = model(**inputs).logits
        ours = our_vectors(tmp_path / "ours", language)
        np.testing.assert_allclose(ours, scores, atol=1e-5)


def extended(ours, folder):
    """A pack of random rows for new pieces, over a model."""
    tokenizer = folder / "tokenizer"
    words = {"grosse": 90, " grosse": 90, " hafen": 80, " kleines": 70, " μεγάλο": 60}
    body, source = load_model(ours)
    num_base = source.rows
    extend_tokenizer(ours / "tokenizer", num_base, words, {}, tokenizer, 8)
    rows = torch.randn(8, body.config.hidden_size)
    pack = body.adaptation("de", {"tokens": rows}, num_base=num_base)
    save_adaptation(folder / "pack", pack, tokenizer)
    return folder / "pack"


def test_an_exported_folder_gives_our_vectors_and_keeps_what_did_not_train(base, tmp_path):
    theirs, ours = base
    pack = extended(ours, tmp_path)
    out = tmp_path / "out"
    export_hf(ours, out, pack)
    np.testing.assert_allclose(our_vectors(ours, pack), their_vectors(out), atol=1e-5)
    before = load_file(theirs / "model.safetensors")
    after = load_file(out / "model.safetensors")
    grown = [name for name, tensor in after.items() if len(tensor) != len(before[name])]
    assert len(grown) == 1
    old = before.pop(grown[0])
    assert torch.equal(after.pop(grown[0])[: len(old)], old)
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
