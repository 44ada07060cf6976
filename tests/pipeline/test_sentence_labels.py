"""A language for a finished classifier: what it says of translations comes to what it says of the
lines.
"""

import shutil

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig
from transformers import BertForSequenceClassification as Classifier

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.artifacts.models import load_model
from ds_minimodel.export.folder import export_hf
from ds_minimodel.pipeline.lines import Targets
from tests.helpers.files import read_json_lines

from ..forks import done
from .sentence_world import make_sentence_world, pairs_of


def scores_of(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = tokenizer(texts, truncation=True, max_length=48, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**inputs).logits.numpy()


def test_a_classifier_learns_to_label_translations_as_it_labels_lines(tmp_path):
    recipe = make_sentence_world(tmp_path)
    base = tmp_path / "base"
    config = BertConfig.from_pretrained(base, num_labels=3)
    torch.manual_seed(0)
    model = Classifier(config)
    with torch.no_grad():  # so that labels differ by the words
        model.bert.embeddings.word_embeddings.weight.normal_(0, 0.5)
        for matrix in (part for part in model.bert.encoder.parameters() if part.dim() == 2):
            matrix.normal_(0, 0.12)
        model.bert.pooler.dense.weight.normal_(0, 0.5)
        model.classifier.weight.normal_(0, 1.0)
    for name in ("modules.json", "sentence_bert_config.json", "model.safetensors"):
        (base / name).unlink()
    shutil.rmtree(base / "1_Pooling")
    model.save_pretrained(base)
    done(f"run {recipe}", "finetune.tasks={}", "adapt.steps=100", "adapt.lr=1e-2")
    run = tmp_path / "run"
    rows = read_json_lines(run / "adapt/bl_base/xx/run/metrics.jsonl")
    losses = [row["loss"] for row in rows]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    assert Targets(run / "pretrain/targets-xx").shape[1] == 3
    reference = run / "pretrain/bl_base/model"
    pack = run / "adapt/bl_base/xx/pack"
    assert load_model(reference)[0].config.head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert not load_adaptation(pack).update
    export_hf(reference, tmp_path / "out", pack)
    english, other = zip(*pairs_of(200, seed=5))
    expected = scores_of(base, list(english))
    assert np.array_equal(scores_of(tmp_path / "out", list(english)), expected)
    labels = expected.argmax(-1)
    before = (scores_of(base, list(other)).argmax(-1) == labels).mean()
    after = (scores_of(tmp_path / "out", list(other)).argmax(-1) == labels).mean()
    assert after > before + 0.05
