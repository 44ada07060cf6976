"""Task models, languages of ours, heads of any depth and mini-models answer in Hugging Face's classes as in ours."""

import random

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from ds_minimodel.data.tokenizer import TokenizerJson, open_tokenizer
from ds_minimodel.hf.convert import export_hf, import_hf
from ds_minimodel.models.artifacts import BodyArtifact, PackArtifact, load_body, load_pack, save_body, save_pack
from ds_minimodel.models.mini import prefix, with_new_layers
from ds_minimodel.models.trainable import SequenceClassifier, encode
from ds_minimodel.serve.packs import plugged_module
from tests.small_models import masked_lm, roberta

from .conftest import ODD_TEXTS, TEXTS, VOCAB_SIZE, randomise, task_logits

CHECKPOINTS = ["xlm_r", "xlm_r_json", "roberta", "roberta_json"]
ATOL = 1e-5


@pytest.fixture(scope="module", params=CHECKPOINTS)
def imported(request, tmp_path_factory):
    """(Hugging Face's folder, ours)."""
    folder, out = request.getfixturevalue(request.param), tmp_path_factory.mktemp("imported") / "out"
    import_hf(folder, out, "en")
    return folder, out


def varied_lines(number):
    """Lines of words in several scripts, with white space, punctuation and digits of all kinds between them."""
    draw = random.Random(5)
    words = " ".join(TEXTS).split()
    between = [" ", "  ", "\t", "\u00a0", "\u3000", "-", "…", "(", "12,5", "'s", "…", "I'll", "....", "aaaa"]
    return [
        "".join(draw.choice(words) + draw.choice(between) for _ in range(draw.randint(1, 12))) for _ in range(number)
    ]


def test_answers_are_those_of_the_exported_model(imported, tmp_path):
    """To the rounding of fp32, by a pack with positions of its own."""
    config, pack = roberta(2, 16, 2, 24, 64), load_pack(imported[1] / "pack")
    tensors = {**pack.tensors, "body.positions": torch.randn(66, 16)}
    save_pack(tmp_path / "pack", PackArtifact("en", tensors, pack.space), imported[1] / "pack")
    module = randomise(SequenceClassifier(config, len(pack.tensors["tokens"]), 3), seed=4)
    own = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("pack.")}
    task = {"name": "t", "kind": "classification", "labels": ["a", "b", "c"]}
    save_body(tmp_path / "model", BodyArtifact(config, (), own, pack.space, task), "task-model")
    export_hf(tmp_path / "model", tmp_path / "out", tmp_path / "pack")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer, lines = AutoTokenizer.from_pretrained(tmp_path / "out"), [line[:40] for line in varied_lines(200)]
    literal, mask = "a <mask> b", tokenizer.mask_token_id
    assert mask not in open_tokenizer(imported[1] / "pack").encode([literal])[0]
    if TokenizerJson(tmp_path / "out/tokenizer.json").kind == "Unigram":  # docs/hugging-face.md says so
        assert mask in tokenizer(literal)["input_ids"]
    else:
        lines += [literal, "a</s> b<s>"]
    batch = tokenizer(lines, return_tensors="pt", padding=True, truncation=True, max_length=64)
    with torch.no_grad():
        expected = model.eval()(**batch).logits
    found = task_logits(tmp_path / "model", tmp_path / "pack", 64, lines)
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)
    assert [*model.config.id2label.values()] == task["labels"]


def test_ids_of_an_exported_tokenizer_of_ours(unigram_folder, imported, tmp_path):
    """A language's pack over an imported body."""
    _, ours = imported
    body, rows = load_body(ours / "body"), open_tokenizer(unigram_folder).vocabulary.size
    save_pack(
        tmp_path / "pack",
        PackArtifact("de", {"tokens": torch.zeros(rows, 16), "bias": torch.zeros(rows)}, body.space),
        unigram_folder,
    )
    export_hf(ours / "body", tmp_path / "out", tmp_path / "pack")
    tokenizer, exported = open_tokenizer(tmp_path / "pack"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [0, 1, 2, 3]
    assert exported.mask_token_id == tokenizer.vocabulary.mask == len(exported) - 1
    for text, ids in zip([*TEXTS, *ODD_TEXTS], tokenizer.encode([*TEXTS, *ODD_TEXTS]), strict=True):
        assert exported(text)["input_ids"] == [0, *ids, 2], text
    for text in TEXTS:
        assert exported.decode(exported(text)["input_ids"], skip_special_tokens=True) == tokenizer.decode(
            tokenizer.encode([text])[0]
        )
    before, after = tokenizer.encode(["a boat", "sees"])
    assert exported("a boat<mask>sees")["input_ids"] == [0, *before, len(exported) - 1, *after, 2]


@pytest.mark.parametrize("name, depth", [("both", 1), ("both", 3), ("mini", None), ("prefix", None)])
def test_a_head_of_any_depth_and_mini_models(xlm_r, tmp_path, name, depth):
    import_hf(xlm_r, tmp_path / "in")
    pack, source = load_pack(tmp_path / "in/pack"), load_body(tmp_path / "in/body")
    config = roberta(3, 16, 2, 24, 64)
    module = randomise(masked_lm(config, VOCAB_SIZE, 1, 3))
    both = BodyArtifact(config, (1, 3), module.body.state_dict(), source.space)
    body = {"both": both, "mini": with_new_layers(source, 1, 1, seed=0), "prefix": prefix(both, 1)}[name]
    save_body(tmp_path / name, body, "mini-model")
    export_hf(tmp_path / name, tmp_path / "out", tmp_path / "in/pack", depth)
    theirs, ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval(), plugged_module(body, pack)
    depth, tokens = depth or body.config.num_layers, torch.arange(4, 64).view(2, 30)
    with torch.no_grad():
        hidden, table = encode(ours.pack, ours.body, {"tokens": tokens})
        x_BSH = hidden[ours.body.head_depths.index(depth)]
        logits = ours.pack.logits(ours.body.heads[str(depth)](x_BSH), table)
        torch.testing.assert_close(theirs(tokens).logits, logits, atol=ATOL, rtol=0)
