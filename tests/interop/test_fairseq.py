"""fairseq's checkpoints give the same artifacts as Hugging Face's of the same weights, and run no code."""

import argparse
import contextlib
import json
import os
import sys
import types

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Tokenizer, RobertaConfig, RobertaForMaskedLM

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.interop.fairseq import import_fairseq
from ds_minimodel.interop.hugging_face import import_hf
from ds_minimodel.model.artifacts import load_body, load_pack

from .conftest import ODD_TEXTS, SIZES, TEXTS, randomise

RENAMED = [
    ("roberta.embeddings.word_embeddings", "sentence_encoder.embed_tokens"),
    ("roberta.embeddings.position_embeddings", "sentence_encoder.embed_positions"),
    ("roberta.embeddings.LayerNorm", "sentence_encoder.emb_layer_norm"),
    ("roberta.encoder.layer", "sentence_encoder.layers"),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "self_attn_layer_norm"),
    ("intermediate.dense", "fc1"),
    ("output.dense", "fc2"),
    ("output.LayerNorm", "final_layer_norm"),
]
SETTINGS = {"encoder_attention_heads": 2, "activation_fn": "gelu", "dropout": 0.1, "attention_dropout": 0.1}


def their_weights(folder, prefix="decoder."):
    """Hugging Face's weights under fairseq's names."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["roberta.embeddings.token_type_embeddings.weight"]
    weights = {}
    for name, tensor in tensors.items():
        for old, new in RENAMED:
            name = name.replace(old, new)
        weights[prefix + name] = tensor
    weights[f"{prefix}lm_head.weight"] = weights[f"{prefix}sentence_encoder.embed_tokens.weight"]
    weights["classification_heads.mnli.dense.weight"] = torch.zeros(2)
    return weights


def joined(weights):
    """Queries, keys and values in one tensor, as in checkpoints of 2019."""
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        weights[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
    return weights


@pytest.fixture
def xlm_r_of_fairseq(xlm_r, tmp_path):
    folder = tmp_path / "fairseq"
    folder.mkdir()
    torch.save({"args": argparse.Namespace(**SETTINGS), "model": their_weights(xlm_r)}, folder / "model.pt")
    (folder / "sentencepiece.bpe.model").write_bytes((xlm_r / "sentencepiece.bpe.model").read_bytes())
    import_hf(xlm_r, tmp_path / "expected")
    pieces = open_tokenizer(tmp_path / "expected/pack").pieces()[4:-1]
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    return folder


def assert_same(out, expected):
    assert load_body(out / "body").config == load_body(expected / "body").config
    for name, load in (("body", load_body), ("pack", load_pack)):
        found, wanted = (load(folder / name).tensors for folder in (out, expected))
        assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in found)
    for name in ("tokenizer.model", "tokenizer.json"):
        if (expected / "pack" / name).exists():
            assert (out / "pack" / name).read_bytes() == (expected / "pack" / name).read_bytes()


@pytest.mark.parametrize("form", ["2019", "2020", "cfg", "legacy"])
def test_xlm_r(xlm_r, xlm_r_of_fairseq, tmp_path, form):
    weights = their_weights(xlm_r, "encoder." if form == "cfg" else "decoder.")
    checkpoint = {"args": argparse.Namespace(**SETTINGS), "model": joined(weights) if form == "2019" else weights}
    if form == "cfg":
        checkpoint |= {"args": None, "cfg": {"model": argparse.Namespace(**SETTINGS)}}
    torch.save(checkpoint, xlm_r_of_fairseq / "model.pt", _use_new_zipfile_serialization=form != "legacy")
    import_fairseq(xlm_r_of_fairseq, tmp_path / "out")
    assert_same(tmp_path / "out", tmp_path / "expected")


def test_roberta_with_gpt2s_files(roberta, tmp_path):
    folder = tmp_path / "fairseq"
    folder.mkdir()
    torch.save({"args": argparse.Namespace(**SETTINGS), "model": their_weights(roberta)}, folder / "model.pt")
    vocabulary = json.loads((roberta / "vocab.json").read_text())
    strings = sorted(vocabulary, key=vocabulary.get)[4:-1]
    encoder = {string: 7 * number for number, string in enumerate(strings)}  # GPT-2 has an order of its own
    (folder / "encoder.json").write_text(json.dumps(encoder))
    (folder / "vocab.bpe").write_text((roberta / "merges.txt").read_text(), encoding="utf-8")
    (folder / "dict.txt").write_text("".join(f"{encoder[string]} 1\n" for string in strings))
    import_fairseq(folder, tmp_path / "out")
    import_hf(roberta, tmp_path / "expected")
    assert_same(tmp_path / "out", tmp_path / "expected")


# What Namespace holds in the published roberta.base, by and large.
ARGUMENTS = {
    **SETTINGS,
    "arch": "roberta_base",
    "task": "masked_lm",
    "criterion": "masked_lm",
    "activation_dropout": 0.0,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_layers": 3,
    "max_positions": 64,
    "tokens_per_sample": 64,
    "sample_break_mode": "complete",
    "optimizer": "adam",
    "adam_betas": "(0.9, 0.98)",
    "lr": [0.0006],
    "mask_prob": 0.15,
    "untie_weights_roberta": False,
    "pooler_activation_fn": "tanh",
}


def test_the_published_form_of_roberta_base(roberta, text_file, tmp_path):
    """The ids are fairseq's: GPT-2's of each piece, looked up in dict.txt."""
    encoder, lines = gpt2_files(text_file, tmp_path)
    model = RobertaForMaskedLM(RobertaConfig(vocab_size=len(lines) + 5, **SIZES))
    randomise(model).save_pretrained(tmp_path / "hf")
    torch.save(
        {
            "args": argparse.Namespace(**ARGUMENTS),
            "model": joined(their_weights(tmp_path / "hf")),
            "optimizer_history": [{"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam"}],
            "extra_state": {"epoch": 3, "val_loss": 1.5},
            "last_optimizer_state": None,
        },
        tmp_path / "model.pt",
        _use_new_zipfile_serialization=False,
    )
    import_fairseq(tmp_path, tmp_path / "out", "en")
    body, pack = load_body(tmp_path / "out/body"), load_pack(tmp_path / "out/pack")
    assert (body.config.num_layers, body.config.ffn_size, body.config.max_positions) == (3, 24, 64)
    assert torch.equal(pack.tensors["tokens"], model.roberta.embeddings.word_embeddings.weight)  # no row has moved
    gpt2 = GPT2Tokenizer.from_pretrained(tmp_path / "gpt2")
    ours = open_tokenizer(tmp_path / "out/pack")
    for text in [*TEXTS, *ODD_TEXTS]:
        expected = [4 + lines.index(str(id)) for id in gpt2(text)["input_ids"]]
        assert ours.encode([text]) == [expected], text
    assert ours.mask_id == len(lines) + 4 and ours.pieces()[-2] == "madeupword0002"
    assert len(set(ours.pieces())) == ours.vocab_size


def gpt2_files(text_file, folder):
    """encoder.json and vocab.bpe in GPT-2's form and a dict.txt in another order: (encoder, words of dict.txt)."""
    trained = ByteLevelBPETokenizer()
    trained.train([str(text_file)], vocab_size=380, special_tokens=[], show_progress=False)
    encoder = {**trained.get_vocab(), "<|endoftext|>": trained.get_vocab_size()}
    merges = [" ".join(pair) for pair in json.loads(trained._tokenizer.to_str())["model"]["merges"]]
    (folder / "gpt2").mkdir()
    for encoder_path, merges_path in (("encoder.json", "vocab.bpe"), ("gpt2/vocab.json", "gpt2/merges.txt")):
        (folder / encoder_path).write_text(json.dumps(encoder))
        (folder / merges_path).write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    ids = sorted(encoder.values(), key=lambda id: (id * 37) % 381)  # by frequency in the published one
    lines = [*map(str, ids), "madeupword0000", "madeupword0001", "madeupword0002"]
    (folder / "dict.txt").write_text("".join(f"{word} {len(lines) - at}\n" for at, word in enumerate(lines)))
    return encoder, lines


class Runs:
    def __reduce__(self):
        return print, ("code of the file ran",)


class Attack:
    """Unpickled by pickle, it makes the file `path` by `how`."""

    def __init__(self, how, path):
        self.how, self.path = how, str(path)

    def __reduce__(self):
        return {
            "system": (os.system, (f"touch {self.path}",)),
            "exec": (exec, (f"open({self.path!r}, 'w')",)),
            "open": (open, (self.path, "w")),
        }[self.how]


@pytest.mark.parametrize("how", ["system", "exec", "open"])
@pytest.mark.parametrize("place", ["args", "model", "before", "extra_state"])
@pytest.mark.parametrize("zipped", [True, False])
def test_attacks(xlm_r, xlm_r_of_fairseq, tmp_path, how, place, zipped):
    attack = Attack(how, tmp_path / "canary")
    checkpoint = {"args": argparse.Namespace(**SETTINGS), "model": their_weights(xlm_r)}
    if place == "args":
        checkpoint["args"].hook = attack
    elif place == "model":
        checkpoint["model"]["hook"] = attack
    elif place == "before":
        checkpoint = {"hook": attack, **checkpoint}
    else:
        checkpoint["extra_state"] = [attack]
    torch.save(checkpoint, xlm_r_of_fairseq / "model.pt", _use_new_zipfile_serialization=zipped)
    import_fairseq(xlm_r_of_fairseq, tmp_path / "out")
    assert not (tmp_path / "canary").exists()
    if zipped and place == "args":  # the same file does harm to a reader that trusts it
        with contextlib.suppress(Exception):
            torch.load(xlm_r_of_fairseq / "model.pt", weights_only=False)
        assert (tmp_path / "canary").exists()


def test_foreign_classes_and_code_are_not_run(xlm_r, xlm_r_of_fairseq, tmp_path, capsys, monkeypatch):
    module = types.ModuleType("omegaconf")
    for name in ("DictConfig", "AnyNode"):
        setattr(module, name, type(name, (), {"__module__": "omegaconf"}))
    monkeypatch.setitem(sys.modules, "omegaconf", module)
    nodes = {}
    for key, value in SETTINGS.items():
        nodes[key] = module.AnyNode()
        nodes[key]._val = value
    config = module.DictConfig()
    config._content = {"model": module.DictConfig()}
    config._content["model"]._content = nodes
    torch.save({"cfg": config, "model": their_weights(xlm_r), "extra_state": Runs()}, xlm_r_of_fairseq / "model.pt")
    monkeypatch.delitem(sys.modules, "omegaconf")
    import_fairseq(xlm_r_of_fairseq, tmp_path / "out")
    assert_same(tmp_path / "out", tmp_path / "expected")
    assert "ran" not in capsys.readouterr().out


ZERO = torch.zeros(1)
POSITIONS = "decoder.sentence_encoder.embed_positions.weight"


def set_to(folder, **settings):
    """Change the settings of the training run in model.pt."""
    checkpoint = torch.load(folder / "model.pt", weights_only=False)
    torch.save({**checkpoint, "args": argparse.Namespace(**{**SETTINGS, **settings})}, folder / "model.pt")


def change(folder, how):
    """Change the weights in model.pt; those of the tied embeddings lie in two tensors then."""
    checkpoint = torch.load(folder / "model.pt", weights_only=False)
    checkpoint["model"]["decoder.lm_head.weight"] = checkpoint["model"]["decoder.lm_head.weight"].clone()
    how(checkpoint["model"])
    torch.save(checkpoint, folder / "model.pt")


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda folder: (folder / "model.pt").write_bytes(b"nothing"), "not a checkpoint of fairseq"),
        (lambda folder: (folder / "model.pt").unlink(), "no such file"),
        (lambda folder: (folder / "dict.txt").unlink(), "must lie beside"),
        (lambda folder: (folder / "dict.txt").write_text("a 1\n"), "do not belong together"),
        (lambda folder: torch.save({"model": {}, "args": argparse.Namespace()}, folder / "model.pt"), "not a RoBERTa"),
        (lambda folder: change(folder, lambda tensors: tensors.pop("decoder.lm_head.bias")), "no tensor lm_head.bias"),
        (lambda folder: change(folder, lambda tensors: tensors["decoder.lm_head.weight"].zero_()), "output embeddings"),
        (lambda folder: change(folder, lambda tensors: tensors["decoder.lm_head.bias"].fill_(torch.nan)), "holds NaN"),
        (lambda folder: change(folder, lambda tensors: tensors.update({"encoder.lm_head.bias": ZERO})), "comes twice"),
        (lambda folder: change(folder, lambda tensors: tensors.update({POSITIONS: ZERO})), "not a RoBERTa of fairseq"),
        (
            lambda folder: change(folder, lambda tensors: tensors.update({POSITIONS: ZERO.expand(9**9, 16)})),
            "has fewer",
        ),
        (
            lambda folder: change(folder, lambda tensors: tensors.update({POSITIONS: torch.zeros(2, 16)})),
            "no positions",
        ),
        (lambda folder: set_to(folder, encoder_attention_heads=True), "settings: encoder_attention_heads"),
        (lambda folder: set_to(folder, encoder_attention_heads=3), "num_heads 3 does not divide"),
        (lambda folder: set_to(folder, encoder_attention_heads=10**12), "settings: encoder_attention_heads"),
        (lambda folder: set_to(folder, dropout="0.1"), "settings: dropout"),
        (lambda folder: set_to(folder, dropout=None), "settings: dropout"),
        (lambda folder: set_to(folder, attention_dropout=1.5), "settings: attention_dropout"),
        (lambda folder: set_to(folder, activation_fn=["gelu"]), "settings: activation_fn"),
        (lambda folder: torch.save([1], folder / "model.pt"), "not a checkpoint of fairseq"),
        (lambda folder: torch.save({"model": {7: ZERO}, "args": {}}, folder / "model.pt"), "not a checkpoint of"),
        (lambda folder: torch.save({"model": {"a": ZERO}, "cfg": None}, folder / "model.pt"), "not a checkpoint of"),
        (lambda folder: (folder / "sentencepiece.bpe.model").write_bytes(b"\xff"), "not a SentencePiece model"),
    ],
)
def test_refusals(xlm_r_of_fairseq, tmp_path, damage, words):
    damage(xlm_r_of_fairseq)
    with pytest.raises(UserError, match=words) as error:
        import_fairseq(xlm_r_of_fairseq, tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
