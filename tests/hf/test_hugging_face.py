"""Task models, languages of ours, heads of any depth and mini-models answer in Hugging Face's
classes as in ours.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from ds_minimodel.artifacts.adaptation import plug, save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.mini import prefix, with_new_layers
from ds_minimodel.artifacts.models import BodyArtifact, load_body, load_model, save_body
from ds_minimodel.evaluation.batches import outputs
from ds_minimodel.evaluation.classification import encode_table
from ds_minimodel.evaluation.packs import plugged_module
from ds_minimodel.evaluation.tables import Records
from ds_minimodel.export.folder import export_hf
from ds_minimodel.models.trainable import encode
from ds_minimodel.tokenizers.tokenizer import TokenizerJson, open_tokenizer
from tests.hf.conftest import varied_lines
from tests.small_models import masked_lm, roberta

from .conftest import VOCAB_SIZE, randomise, save_task_model

CHECKPOINTS = ["xlm_r", "roberta_json"]  # ids of the other forms: test_bases.py
ATOL = 1e-5


@pytest.fixture(scope="module", params=CHECKPOINTS)
def imported(request, tmp_path_factory):
    """(Hugging Face's folder, ours)."""
    folder = request.getfixturevalue(request.param)
    out = tmp_path_factory.mktemp("imported") / "out"
    refer(folder, out, "en")
    return folder, out


def test_scores_are_those_of_the_exported_model(imported, tmp_path):
    """Of every text to the rounding of fp32; by a language with positions of its own."""
    _, ours = imported
    config = roberta(2, 16, 2, 24, 64)
    (body, pack) = load_model(ours)
    adaptation = body.adaptation(
        "en", dict(pack.embeddings), update={"positions": torch.randn(66, 16)}
    )
    save_adaptation(tmp_path / "pack", adaptation, ours / "tokenizer")
    module = save_task_model(ours, "classification", ["a", "b", "c"], tmp_path / "model", config)
    plug(module, adaptation, load_body(tmp_path / "model"))
    export_hf(tmp_path / "model", tmp_path / "out", tmp_path / "pack")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    lines = [line[:40] for line in varied_lines(200)]
    literal = "a <mask> b"
    mask = tokenizer.mask_token_id
    assert mask not in open_tokenizer(ours).encode([literal])[0]
    if (
        TokenizerJson(tmp_path / "out/tokenizer.json").kind == "Unigram"
    ):  # docs/hugging-face.md says so
        assert mask in tokenizer(literal)["input_ids"]
    else:
        lines += [literal, "a</s> b<s>"]
    batch = tokenizer(lines, return_tensors="pt", padding=True, truncation=True, max_length=64)
    with torch.no_grad():
        expected = model(**batch).logits
    records = Records((lines,), np.zeros(len(lines)), ())
    for index, logits in outputs(
        module, encode_table(open_tokenizer(tmp_path / "pack"), records, 64)
    ):
        assert_close(torch.from_numpy(logits), expected[index], atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    "name, depth", [("both", 1), ("both", 3), ("mini", None), ("prefix", None)]
)
def test_a_head_of_any_depth_and_mini_models(xlm_r, tmp_path, name, depth):
    refer(xlm_r, tmp_path / "in")
    source, pack = load_model(tmp_path / "in")
    config = roberta(3, 16, 2, 24, 64)
    module = randomise(masked_lm(config, VOCAB_SIZE, 1, 3))
    both = BodyArtifact(config, (1, 3), module.body.state_dict(), source.space)
    body = {"both": both, "mini": with_new_layers(source, 1, 1, seed=0), "prefix": prefix(both, 1)}[
        name
    ]
    save_body(tmp_path / name, body, "mini-model", tmp_path / "in")
    export_hf(tmp_path / name, tmp_path / "out", tmp_path / "in", depth)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ours = plugged_module(body, pack)
    depth = depth or body.config.num_layers
    tokens = torch.arange(4, 64).view(2, 30)
    with torch.no_grad():
        hidden, table = encode(ours.pack, ours.body, {"tokens": tokens})
        x_BSH = hidden[ours.body.head_depths.index(depth)]
        logits = ours.pack.logits(ours.body.heads[str(depth)](x_BSH), table)
        assert_close(theirs(tokens).logits, logits, atol=ATOL, rtol=0)
