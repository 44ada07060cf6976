"""Models of sentence-transformers: equal vectors in and out, and refusals by name."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import config_of, refer
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.evaluation.packs import open_pack, plugged_module
from ds_minimodel.evaluation.sentences import encode_texts
from ds_minimodel.export.folder import export_hf
from ds_minimodel.tokenizers.extension import extend_tokenizer
from tests.helpers.files import write_json
from tests.helpers.refusals import refuses

from .conftest import ODD_TEXTS, TEXTS
from .refusing import change, refused
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
    "distilbert": ("distilbert", {}),
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
    "distilbert": ("distilbert", {}),
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


def write_modules(folder, *kinds, **paths):
    """Another list of modules: classes of sentence-transformers by their names."""
    default = {"Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": {**default, **paths}.get(kind, ""),
            "type": kind if "." in kind else f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)


def in_modules(*kinds, **paths):
    return lambda folder: write_modules(folder, *kinds, **paths)


def in_file(name, **values):
    return lambda folder: change(folder / name, **values)


POOLING = "1_Pooling/config.json"
DENSE = "2_Dense/config.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
REFUSED = {
    "another class": (in_modules("Transformer", "Pooling", "LSTM"), "modules.json", "models.LSTM"),
    "code of its own": (in_modules("Transformer", "custom_st.Pooling"), "custom_st.Pooling"),
    "no pooling": (in_modules("Transformer"), "Transformer; served"),
    "two transformers": (in_modules("Transformer", "Transformer", "Pooling"), "in this order"),
    "normalised first": (in_modules("Transformer", "Normalize", "Pooling"), "in this order"),
    "a path outside": (
        in_modules("Transformer", "Pooling", Pooling="../1_Pooling"),
        "leads out of the folder",
    ),
    "an absolute path": (in_modules("Transformer", "Pooling", Pooling="/etc"), "leads out"),
    "a transformer elsewhere": (
        in_modules("Transformer", "Pooling", Transformer="0_Transformer"),
        "0_Transformer",
    ),
    "no list": (lambda folder: (folder / "modules.json").write_text("{}"), "modules.json"),
    "no JSON": (lambda folder: (folder / "modules.json").write_text("["), "modules.json"),
    "no file of pooling": (lambda folder: (folder / POOLING).unlink(), POOLING),
    "max": (in_file(POOLING, pooling_mode="max"), POOLING, "max"),
    "two poolings": (in_file(POOLING, pooling_mode=["mean", "cls"]), POOLING),
    "another width": (in_file(POOLING, embedding_dimension=17), "17", "16"),
    "a residual": (in_file(DENSE, use_residual=True), DENSE, "use_residual"),
    "an activation of its own": (in_file(DENSE, activation_function="os.system"), "os.system"),
    "a wider projection": (in_file(DENSE, in_features=5), DENSE, "in_features 5"),
    "no weights of it": (lambda folder: (folder / "2_Dense/model.safetensors").unlink(), "2_Dense"),
    "another task": (in_file(SETTINGS, transformer_task="fill-mask"), "transformer_task"),
    "settings of a tokenizer": (in_file(SETTINGS, tokenizer_args={"a": 1}), "tokenizer_args"),
    "an unknown setting": (in_file(SETTINGS, max_len=3), "max_len"),
    "too short": (in_file(SETTINGS, max_seq_length=2), "max_seq_length 2"),
    "images": (in_file(SETTINGS, modality_config={"image": {}}), "modality_config"),
    "another kind of model": (in_file(PROMPTS, model_type="SparseEncoder"), "SparseEncoder"),
    "no such prompt": (in_file(PROMPTS, default_prompt_name="a"), "default_prompt_name"),
    "first states behind a prompt": (
        lambda folder: (
            change(folder / PROMPTS, prompts={"query": "query: "}),
            change(folder / POOLING, include_prompt=False, pooling_mode="cls"),
        ),
        "include_prompt",
    ),
    "MPNet": (in_file("config.json", model_type="mpnet"), "mpnet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused_by_name(name, encoders, tmp_path):
    spoil, *words = REFUSED[name]
    folder = save_sentence_model(encoders["bert-uncased"], tmp_path / "theirs", dense=12)
    spoil(folder)
    refused(folder, tmp_path / "out", *words)


def test_a_bare_encoder_gives_vectors_by_the_pooling_that_is_given(encoders, tmp_path):
    refer(encoders["bert-cased"], tmp_path / "ours", "en", pooling="cls")
    pack = extended(tmp_path / "ours", tmp_path)
    export_hf(tmp_path / "ours", tmp_path / "out", pack)
    ours = our_vectors(tmp_path / "ours", pack)
    np.testing.assert_allclose(ours, their_vectors(tmp_path / "out"), atol=1e-5)
    names = load_file(tmp_path / "out/model.safetensors")
    assert not any(name.startswith("cls.") for name in names)
    sentence = save_sentence_model(encoders["bert-cased"], tmp_path / "theirs")
    with refuses("leave --pooling out"):
        refer(sentence, tmp_path / "other", pooling="mean")


def test_prompts_are_known(encoders, tmp_path):
    folder = save_sentence_model(encoders["bert-cased"], tmp_path / "theirs")
    prompts = {"query": "query: ", "passage": "passage: "}
    change(folder / PROMPTS, prompts=prompts, default_prompt_name="passage")
    head = config_of(folder).config.head
    assert head.prompt("query") == "query: "
    assert head.prompt("document") == "passage: "


@pytest.mark.parametrize("texts", [LINES, LINES[:1]], ids=["padded", "alone"])
def test_a_prompt_that_is_not_pooled_is_read_alone(texts, encoders, tmp_path):
    folder = save_sentence_model(encoders["bert-cased"], tmp_path / "theirs")
    change(folder / PROMPTS, prompts={"query": "the harbour: "})
    change(folder / POOLING, include_prompt=False)
    refer(folder, tmp_path / "ours", "en")
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, prompt_name="query")

    body, _ = load_model(tmp_path / "ours")
    assert not body.config.head.pools_prompt
    language, tokenizer = open_pack(tmp_path / "ours", body, tmp_path / "ours")
    model = plugged_module(body, language)
    ours = encode_texts(model, tokenizer, texts, prompt=body.config.head.prompt("query"))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    pooled = encode_texts(model, tokenizer, [f"the harbour: {text}" for text in texts])
    assert np.abs(pooled - theirs).max() > 1e-3


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
