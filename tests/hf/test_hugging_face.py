"""Task models, languages of ours, heads of any depth and mini-models answer in Hugging Face's classes as in ours."""

import random

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from ds_minimodel.data.tokenizer import TokenizerJson, open_tokenizer
from ds_minimodel.hf.convert import export_hf, import_hf
from ds_minimodel.models.artifacts import BodyArtifact, PackArtifact, load_body, load_pack, save_body, save_pack
from ds_minimodel.models.mini import prefix, with_new_layers
from ds_minimodel.models.trainable import SequenceClassifier
from ds_minimodel.serve.predictor import Predictor
from tests.small_models import masked_lm, roberta

from .conftest import ODD_TEXTS, TEXTS, VOCAB_SIZE, randomise

CHECKPOINTS = ["xlm_r", "xlm_r_json", "roberta", "roberta_json"]
ATOL = 1e-5
BOS, PAD, EOS = 0, 1, 2  # of all of these


@pytest.fixture(scope="module", params=CHECKPOINTS)
def imported(request, tmp_path_factory):
    """(Hugging Face's folder, ours)."""
    folder, out = request.getfixturevalue(request.param), tmp_path_factory.mktemp("imported") / "out"
    import_hf(folder, out, "en")
    return folder, out


def encode(tokenizer, texts):
    """A padded batch <s> text </s> of our tokenizer's ids: (tokens (B, S), lengths (B))."""
    rows = [torch.tensor([BOS, *ids, EOS]) for ids in tokenizer.encode(texts)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), torch.tensor(
        [len(row) for row in rows], dtype=torch.int32
    )


def logits_of_ours(body, pack, tokens, lengths, depth):
    """(B, S, V) of a body's head."""
    model = masked_lm(body.config, len(pack.tensors["tokens"]), *body.head_depths).eval()
    model.load_state_dict(
        {f"body.{name}": tensor for name, tensor in body.tensors.items()}
        | {f"pack.{name}": tensor for name, tensor in pack.tensors.items()}
    )
    with torch.no_grad():
        (x_BSH,) = model.body(model.pack(tokens)[0], lengths, model.body.dropout(None), None, (depth,))
        inner = model.body.heads[str(depth)](x_BSH.flatten(0, 1)).view_as(x_BSH)
        return inner @ model.pack.tokens.T + model.pack.bias


def logits_of_theirs(model, tokenizer, texts):
    """(output, attention mask) of a Hugging Face model on texts."""
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        return model.eval()(**batch), batch["attention_mask"].bool()


def varied_lines(number):
    """Lines of words in several scripts, with white space, punctuation and digits of all kinds between them."""
    draw = random.Random(5)
    words = " ".join(TEXTS).split()
    between = [" ", "  ", "\t", "\u00a0", "\u3000", "-", "…", "(", "12,5", "'s", "…", "I'll", "....", "aaaa"]
    return [
        "".join(draw.choice(words) + draw.choice(between) for _ in range(draw.randint(1, 12))) for _ in range(number)
    ]


def test_answers_are_those_of_the_exported_model(imported, tmp_path):
    """Of every request to the rounding of fp32, which is what a CPU answers in; by a pack with positions of its own."""
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
    predictor = Predictor(tmp_path / "model", {"en": tmp_path / "pack"})
    literal, mask = "a <mask> b", tokenizer.mask_token_id
    assert mask not in open_tokenizer(imported[1] / "pack").encode([literal])[0]
    if TokenizerJson(tmp_path / "out/tokenizer.json").kind == "Unigram":  # docs/hugging-face.md says so
        assert mask in tokenizer(literal)["input_ids"]
    else:
        lines += [literal, "a</s> b<s>"]
    assert predictor.precision == ("fp32" if predictor.device.type == "cpu" else "bf16")
    batch = tokenizer(lines, return_tensors="pt", padding=True, truncation=True, max_length=64)
    with torch.no_grad():
        expected = model.eval()(**batch).logits.softmax(-1)
    answers = predictor.predict([{"text": line} for line in lines])
    found = torch.tensor([list(answer["scores"].values()) for answer in answers])
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=0)
    assert [answer["label"] for answer in answers] == [task["labels"][id] for id in expected.argmax(-1)]


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


@pytest.mark.parametrize("depth", [1, 3])
def test_a_head_of_any_depth_and_mini_models(xlm_r, tmp_path, depth):
    import_hf(xlm_r, tmp_path / "in")
    pack, source = load_pack(tmp_path / "in/pack"), load_body(tmp_path / "in/body")
    config = roberta(3, 16, 2, 24, 64)
    module = randomise(masked_lm(config, VOCAB_SIZE, 1, 3))
    both = BodyArtifact(config, (1, 3), module.body.state_dict(), source.space)
    for name, body in (("both", both), ("mini", with_new_layers(source, 1, 1, seed=0)), ("prefix", prefix(both, 1))):
        save_body(tmp_path / name, body, "mini-model")
        depth_here = depth if name == "both" else body.config.num_layers
        export_hf(tmp_path / name, tmp_path / f"{name}.hf", tmp_path / "in/pack", depth if name == "both" else None)
        tokens, lengths = encode(open_tokenizer(tmp_path / "in/pack"), TEXTS[:3])
        theirs, mask = logits_of_theirs(
            AutoModelForMaskedLM.from_pretrained(tmp_path / f"{name}.hf"),
            AutoTokenizer.from_pretrained(tmp_path / f"{name}.hf"),
            TEXTS[:3],
        )
        ours = logits_of_ours(body, pack, tokens, lengths, depth_here)
        torch.testing.assert_close(theirs.logits[mask], ours[mask], atol=ATOL, rtol=0)
