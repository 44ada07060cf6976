"""Folders that cannot be imported or exported: one line that says why, and nothing written."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    GPT2Config,
    RobertaPreLayerNormConfig,
    XLMRobertaXLConfig,
)

from ds_minimodel.cli.main import main
from ds_minimodel.common.errors import UserError
from ds_minimodel.interop.hugging_face import export_hf, import_hf
from ds_minimodel.model.artifacts import BodyArtifact, load_body, save_body


@pytest.fixture
def folder(xlm_r, tmp_path):
    return shutil.copytree(xlm_r, tmp_path / "hf")


def refused(folder, out, *words):
    with pytest.raises(UserError) as error:
        import_hf(folder, out)
    line = str(error.value)
    assert "\n" not in line and all(word in line for word in (str(folder), *words)), line
    assert not out.exists()


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "key, value",
    [
        ("model_type", "bert"),
        ("hidden_act", "relu"),
        ("layer_norm_eps", 1e-12),
        ("type_vocab_size", 2),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("tie_word_embeddings", False),
        ("pad_token_id", 0),
        ("hidden_size", "16"),
        ("num_attention_heads", 3),
        ("vocab_size", 261),
    ],
)
def test_configurations(folder, tmp_path, key, value):
    change(folder / "config.json", **{key: value})
    refused(folder, tmp_path / "out", key)


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(),
        GPT2Config(),
        DebertaV2Config(),
        DistilBertConfig(),
        RobertaPreLayerNormConfig(),
        XLMRobertaXLConfig(),
    ],
    ids=lambda config: config.model_type,
)
def test_other_architectures(folder, tmp_path, config):
    config.save_pretrained(folder)
    refused(folder, tmp_path / "out", f"model_type {config.model_type};", "takes roberta and xlm-roberta")


def test_a_wordpiece_vocabulary(folder, tmp_path):
    (folder / "sentencepiece.bpe.model").unlink()
    Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    refused(folder, tmp_path / "out", "a WordPiece vocabulary")


@pytest.mark.parametrize(
    "name, words",
    [
        ("config.json", "no such file"),
        ("model.safetensors", "pytorch_model.bin"),
        ("sentencepiece.bpe.model", "no tokenizer"),
    ],
)
def test_missing_files(folder, tmp_path, name, words):
    (folder / name).unlink()
    refused(folder, tmp_path / "out", words)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "sentencepiece.bpe.model"])
def test_damaged_files(folder, tmp_path, name):
    (folder / name).write_bytes(b"\xffno such thing" * 100)
    refused(folder, tmp_path / "out", name)


def test_damaged_tokenizer_json(folder, tmp_path):
    (folder / "sentencepiece.bpe.model").unlink()
    (folder / "tokenizer.json").write_text('{"model": {}}')
    refused(folder, tmp_path / "out", "not a tokenizer")


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda tensors: tensors.pop("lm_head.dense.weight"), "no tensor lm_head.dense.weight"),
        (lambda tensors: tensors.update({"roberta.adapter": torch.zeros(1)}), "'roberta.adapter' has no counterpart"),
        (lambda tensors: tensors.update({"lm_head.layer_norm.bias": torch.zeros(3)}), "has shape (3,)"),
        (lambda tensors: tensors.update({"lm_head.decoder.weight": torch.zeros(260, 16)}), "differs from"),
    ],
)
def test_weights(folder, tmp_path, change, words):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    refused(folder, tmp_path / "out", words)


class Runs:
    def __reduce__(self):
        return print, ("code of the file ran",)


def test_a_pickle_with_code_is_refused_and_not_run(folder, tmp_path, capsys):
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Runs()}, folder / "pytorch_model.bin")
    refused(folder, tmp_path / "out", "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(), protocol=2))
    refused(folder, tmp_path / "out", "pytorch_model.bin")
    assert "ran" not in capsys.readouterr().out


def test_exports(xlm_r, tmp_path):
    import_hf(xlm_r, tmp_path / "in")
    body = load_body(tmp_path / "in/body")
    save_body(tmp_path / "alone", body, "body")
    save_body(tmp_path / "stranger", BodyArtifact(body.config, body.tensors, "0" * 16), "body")
    for arguments, words in [
        ((tmp_path / "alone", tmp_path / "out"), "--pack"),
        ((tmp_path / "in/body", tmp_path / "out", None, 2), "no masked-LM head of depth 2"),
        ((tmp_path / "stranger", tmp_path / "out", tmp_path / "in/pack"), "embedding space"),
        ((tmp_path / "in/body", tmp_path / "in"), "exists"),
    ]:
        with pytest.raises(UserError, match=words):
            export_hf(*arguments)
    assert not (tmp_path / "out").exists()


def test_the_commands(xlm_r, tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        return stop.value.code, capsys.readouterr().err

    assert run("import-hf", xlm_r, tmp_path / "in", "--language", "en") == (
        0,
        f"{tmp_path}/in/body and {tmp_path}/in/pack: written\n",
    )
    assert run("export-hf", tmp_path / "in/body", tmp_path / "out", "--pack", tmp_path / "in/pack") == (
        0,
        f"{tmp_path}/out: written\n",
    )
    before, after = (load_file(folder / "model.safetensors") for folder in (xlm_r, tmp_path / "out"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    for command in ("import-hf", "import-fairseq", "export-hf"):
        code, line = run(command, tmp_path / "no/model", tmp_path / "new")
        assert code == 2 and line.count("\n") == 1 and "no/model: no such folder; give that of a" in line
    for command, words in (("import-hf", "exists"), ("import-fairseq", "exists"), ("export-hf", "no such file")):
        code, line = run(
            command,
            xlm_r,
            tmp_path / ("nowhere" if command == "export-hf" else "in"),
            *(["--pack", tmp_path / "in/pack"] if command == "export-hf" else []),
        )
        assert code == 2 and line.count("\n") == 1 and words in line
