"""Folders that cannot be imported or exported: one line that says why, and nothing written."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2 as protobuf
from transformers import (
    AutoTokenizer,
    DebertaV2Config,
    DistilBertConfig,
    GPT2Config,
    RobertaPreLayerNormConfig,
    XLMRobertaXLConfig,
)

from ds_minimodel.bodies.roberta.hugging_face import TYPES
from ds_minimodel.cli.main import main
from ds_minimodel.common.errors import UserError
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.interop.hugging_face import export_hf, import_hf
from ds_minimodel.model.artifacts import BodyArtifact, load_body, save_body

from .conftest import TEXTS


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
        ("model_type", "gpt2"),
        ("hidden_act", "relu"),
        ("type_vocab_size", 2),
        ("position_embedding_type", "relative_key"),
        ("tie_word_embeddings", False),
        ("pad_token_id", 0),
        ("hidden_size", "16"),
        ("num_attention_heads", 3),
        ("num_attention_heads", True),
        ("num_hidden_layers", None),
        ("max_position_embeddings", 2),
        ("hidden_dropout_prob", None),
        ("bos_token_id", False),
        ("architectures", "RobertaForMaskedLM"),
    ],
)
def test_configurations(folder, tmp_path, key, value):
    change(folder / "config.json", **{key: value})
    refused(folder, tmp_path / "out", key)


@pytest.mark.parametrize("content", ["[]", "", "7", '{"a":' * 2000, '{"model_type": "roberta"', "\ufeff{}"])
def test_a_configuration_that_is_none(folder, tmp_path, content):
    (folder / "config.json").write_text(content, encoding="utf-8")
    refused(folder, tmp_path / "out", "config.json")


@pytest.mark.parametrize(
    "config",
    [GPT2Config(), DebertaV2Config(), DistilBertConfig(), RobertaPreLayerNormConfig(), XLMRobertaXLConfig()],
    ids=lambda config: config.model_type,
)
def test_other_architectures(folder, tmp_path, config):
    config.save_pretrained(folder)
    refused(
        folder,
        tmp_path / "out",
        f"model_type {config.model_type};",
        "takes roberta, xlm-roberta, camembert, bert, modernbert, eurobert, llama",
    )


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


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda tensors: tensors.pop("lm_head.dense.weight"), "no tensor lm_head.dense.weight"),
        (lambda tensors: tensors.update({"roberta.adapter": torch.zeros(1)}), "'roberta.adapter' has no counterpart"),
        (lambda tensors: tensors.update({"lm_head.layer_norm.bias": torch.zeros(3)}), "has shape (3,)"),
        (lambda tensors: tensors.update({"lm_head.decoder.weight": torch.zeros(260, 16)}), "differs from"),
        (lambda tensors: tensors["lm_head.bias"].fill_(float("nan")), "lm_head.bias holds NaN or infinite numbers"),
        (lambda tensors: tensors.update({"lm_head.bias": torch.zeros(260).int()}), "torch.int32, not of floating"),
        (
            lambda tensors: tensors.update({"lm_head.bias": torch.full((260,), 0.1, dtype=torch.float64)}),
            "numbers that fp32 has not",
        ),
        (lambda tensors: tensors.update({TYPES: torch.zeros(2, 16)}), "has shape (2, 16), the configuration gives"),
        (lambda tensors: tensors.update({TYPES: torch.full((1, 16), float("nan"))}), "NaN"),
    ],
)
def test_weights(folder, tmp_path, change, words):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    refused(folder, tmp_path / "out", words)


# Changes to RoBERTa's tokenizer.json, and what the refusal says. Each would give other ids, or the same ids by chance.
TOKEN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
STRASSE = {"id": 400, "content": "Straße", **TOKEN}


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda file: file["added_tokens"].append({**STRASSE, "id": 401}), "not in the order of the ids"),
        (lambda file: file["added_tokens"].append({**STRASSE, "id": 10**12}), "added_tokens.5.id"),
        (lambda file: file["added_tokens"][4].update(id=7), "<mask> has id 7"),
        (lambda file: file["model"].update(dropout=0.1), "model.dropout"),
        (lambda file: file["model"].update(continuing_subword_prefix="ééé"), "not a tokenizer (range end index"),
        (lambda file: file["model"].update(end_of_word_suffix="</w>"), "as transformers reads it"),
        (lambda file: file["model"]["merges"].append("a b c"), "not a tokenizer"),
        (lambda file: file["model"]["vocab"].update({"!": -1}), "model.vocab."),
        (lambda file: file["model"]["vocab"].update({"!": 6}), "have one id"),
        (lambda file: file.update(normalizer={"type": "Lowercase"}), "as transformers reads it"),
        (lambda file: file["pre_tokenizer"].update(add_prefix_space=True), "add_prefix_space"),
        (lambda file: file.update(pre_tokenizer={"type": "FixedLength", "length": 0}), "chunk size must be non-zero"),
        (lambda file: file.update(pre_tokenizer=7), "pre_tokenizer: Input should be a valid dictionary"),
        (lambda file: file.update(post_processor=[]), "post_processor: Input should be a valid dictionary"),
        (lambda file: file.update(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "ab"}), "index"),
        (lambda file: file["post_processor"].update(cls=["<pad>", 1]), "post_processor"),
    ],
)
def test_settings_of_a_tokenizer_that_would_be_lost(roberta_json, tmp_path, capfd, change, words):
    refused_with(roberta_json, tmp_path, capfd, change, words)


def refused_with(model, tmp_path, capfd, change, words):
    """Of a model with a change to its tokenizer.json."""
    folder = shutil.copytree(model, tmp_path / "hf")
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    refused(folder, tmp_path / "out", "tokenizer.json", words)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda file: file["added_tokens"].append({**STRASSE, "id": 261}), "not in the order of the ids"),
        (lambda file: file["model"].update(unk_id=0), "the text '<s>' becomes the special id 0"),
        (lambda file: file["model"]["vocab"].append(["▁", -2.0]), "a piece comes twice"),
        (lambda file: file["model"]["vocab"][9].__setitem__(1, float("nan")), "not a tokenizer"),
        (lambda file: file["normalizer"].update(precompiled_charsmap="AAAA"), "precompiled_charsmap"),
        (
            lambda file: file.update(normalizer={"type": "Replace", "pattern": {"String": "ß"}, "content": "ss"}),
            "as transformers reads it",
        ),
        (
            lambda file: file["pre_tokenizer"]["pretokenizers"][1].update(prepend_scheme="never"),
            "as transformers reads it",
        ),
        (lambda file: file["post_processor"]["single"].pop(0), "post_processor"),
    ],
)
def test_settings_of_xlm_rs_tokenizer_json(xlm_r_json, tmp_path, capfd, change, words):
    refused_with(xlm_r_json, tmp_path, capfd, change, words)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("added_tokens.json", {"Straße": 4000}, "'Straße' is not in the vocabulary"),
        ("added_tokens.json", {"<mask>": 7}, "'<mask>' has id 7"),
        ("special_tokens_map.json", {"additional_special_tokens": ["Straße"]}, "'Straße' is not in the vocabulary"),
        ("special_tokens_map.json", {"mask_token": {"content": "[MASK]"}}, "mask_token: '[MASK]' is not '<mask>'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "Straße"}}}, "is not in the vocabulary"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"a": {"content": "Straße"}}}, "added_tokens_decoder"),
        ("tokenizer_config.json", {"tokenizer_class": "BertTokenizer"}, "BertTokenizer does not read a"),
        ("tokenizer_config.json", {"add_prefix_space": "yes"}, "add_prefix_space"),
        ("tokenizer_config.json", {"sp_model_kwargs": {"enable_sampling": True}}, "enable_sampling"),
    ],
)
@pytest.mark.parametrize("model", ["roberta_json", "xlm_r_json"])
def test_settings_beside_a_vocabulary(request, tmp_path, model, name, content, words):
    folder = shutil.copytree(request.getfixturevalue(model), tmp_path / "hf")
    former = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    content = {**former, **content} if isinstance(content, dict) else content
    (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    refused(folder, tmp_path / "out", name, words)


def test_add_prefix_space_must_be_said_where_hugging_face_looks_for_it(roberta_json, tmp_path):
    """RoBERTa's class reads tokenizer_config.json, the generic one tokenizer.json; then the ids are the same."""
    folder = shutil.copytree(roberta_json, tmp_path / "hf")
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    content = json.loads(path.read_text())
    content["pre_tokenizer"]["add_prefix_space"] = True
    path.write_text(json.dumps(content, ensure_ascii=False))
    for said in ({"add_prefix_space": False}, {}, {"add_prefix_space": False, "tokenizer_class": "TokenizersBackend"}):
        settings.write_text(json.dumps(said))
        refused(folder, tmp_path / "out", "add_prefix_space true, but tokenizer_config.json makes it false")
    for number, said in enumerate(({"add_prefix_space": True}, {"tokenizer_class": "TokenizersBackend"})):
        settings.write_text(json.dumps({"mask_token": "<mask>", **said}))
        import_hf(folder, tmp_path / f"{number}")
        theirs, ours = AutoTokenizer.from_pretrained(folder), open_tokenizer(tmp_path / f"{number}/pack")
        for text in TEXTS:
            assert theirs(text)["input_ids"] == [0, *ours.encode([text])[0], 2]


@pytest.mark.parametrize("piece", ["<pad>", "<mask>"])
def test_sentencepiece_models_that_hugging_face_reads_otherwise(folder, tmp_path, piece):
    path = folder / "sentencepiece.bpe.model"
    model = protobuf.ModelProto.FromString(path.read_bytes())
    model.pieces[9].piece = piece
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="a piece comes twice"):
        import_hf(folder, tmp_path / "out")


def test_a_sentencepiece_model_whose_piece_is_not_utf_8(folder, tmp_path):
    path = folder / "sentencepiece.bpe.model"
    data = path.read_bytes()
    name = protobuf.ModelProto.FromString(data).pieces[9].piece.encode()
    path.write_bytes(data.replace(b"\n" + bytes([len(name)]) + name, b"\n" + bytes([len(name)]) + b"\xc1" * len(name)))
    with pytest.raises(UserError, match="sentencepiece.bpe.model: transformers cannot read it"):
        import_hf(folder, tmp_path / "out")


def test_two_vocabularies_that_differ(xlm_r, xlm_r_json, tmp_path):
    """transformers takes tokenizer.json where there is one; other libraries may not, so they must agree."""
    folder = shutil.copytree(xlm_r, tmp_path / "hf")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(xlm_r_json / name, folder / name)
    import_hf(folder, tmp_path / "same")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"][9][1] -= 1
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    refused(folder, tmp_path / "out", "sentencepiece.bpe.model", "is not as in tokenizer.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "sentencepiece.bpe.model"])
@pytest.mark.parametrize("what", ["folder", "empty", "dangling", "loop", "pipe"])
def test_what_is_in_the_place_of_a_file(folder, tmp_path, name, what):
    path = folder / name
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.touch()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(name if what == "loop" else "nothing")
    refused(folder, tmp_path / "out", name)


def test_links_of_a_cache_are_followed(folder, tmp_path):
    """The cache of Hugging Face's library holds nothing else."""
    for path in list(folder.iterdir()):
        target = path.rename(tmp_path / f"blob-{path.name}")
        path.symlink_to(target)
    import_hf(folder, tmp_path / "out")


def test_a_view_of_a_size_that_no_memory_has(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.bias": torch.zeros(1).expand(10**12)}, folder / "pytorch_model.bin")
    refused(folder, tmp_path / "out", "has fewer numbers than that")
    for other in ([1], {7: torch.zeros(1)}, {"a": "b"}, torch.zeros(2)):
        torch.save(other, folder / "pytorch_model.bin")
        refused(folder, tmp_path / "out", "pytorch_model.bin")


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
    save_body(tmp_path / "stranger", BodyArtifact(body.config, body.head_depths, body.tensors, "0" * 16), "body")
    for arguments, words in [
        ((tmp_path / "alone", tmp_path / "out"), "--pack"),
        ((tmp_path / "in/body", tmp_path / "out", None, 2), "no language-model head of depth 2"),
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
    for command in ("import-hf", "export-hf"):
        code, line = run(command, tmp_path / "no/model", tmp_path / "new")
        assert code == 2 and line.count("\n") == 1 and "no/model: no such folder; give that of a" in line
    for command, words in (("import-hf", "exists"), ("export-hf", "no such file")):
        code, line = run(
            command,
            xlm_r,
            tmp_path / ("nowhere" if command == "export-hf" else "in"),
            *(["--pack", tmp_path / "in/pack"] if command == "export-hf" else []),
        )
        assert code == 2 and line.count("\n") == 1 and words in line
