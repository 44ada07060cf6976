"""Folders that cannot be imported or exported: one line that says why, within seconds, and nothing
written.
"""

import dataclasses
import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import sentencepiece_model_pb2 as protobuf

from ds_minimodel.artifacts.adaptation import save_adaptation
from ds_minimodel.artifacts.base import refer
from ds_minimodel.artifacts.mini import prefix
from ds_minimodel.artifacts.models import load_model, save_body
from ds_minimodel.common.errors import UserError
from ds_minimodel.export.folder import export_hf
from tests.helpers.commands import answer
from tests.helpers.files import read_json, write_json
from tests.helpers.refusals import refuses

from .refusing import change, refused

TYPES = "roberta.embeddings.token_type_embeddings.weight"


@pytest.fixture
def folder(xlm_r, tmp_path):
    return shutil.copytree(xlm_r, tmp_path / "hf")


@pytest.mark.parametrize(
    "key, value, words",
    [
        (
            "model_type",
            "gpt2",
            "there are roberta, xlm-roberta, camembert, bert, distilbert, modernbert, eurobert, "
            "llama",
        ),
        ("hidden_act", "relu", "hidden_act 'relu' is not served; there is gelu"),
        ("tie_word_embeddings", False, "no tensor lm_head.decoder"),
        ("hidden_size", "16", "hidden_size"),
        ("num_hidden_layers", 9_999, "58 tensors, where config.json has 9999 layers"),
        ("vocab_size", 3_000_000, "vocab_size: 3000000 is not a number up to 1,048,576"),
        ("vocab_size", 10**6, "numbers, where config.json describes a model of"),
    ],
)
def test_configurations(folder, tmp_path, key, value, words):
    change(folder / "config.json", **{key: value})
    refused(folder, tmp_path / "out", words)


@pytest.mark.parametrize("content", ["[]", "", '{"a":' * 2000])
def test_a_configuration_that_is_none(folder, tmp_path, content):
    (folder / "config.json").write_text(content)
    refused(folder, tmp_path / "out", "config.json")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "sentencepiece.bpe.model"])
@pytest.mark.parametrize("what", ["missing", "damaged", "folder", "empty"])
def test_what_is_in_the_place_of_a_file(folder, tmp_path, name, what):
    path = folder / name
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what != "missing":
        path.write_bytes(b"\xffno such thing" * 100 if what == "damaged" else b"")
    refused(folder, tmp_path / "out")


def test_links_of_a_cache_are_followed(folder, tmp_path):
    """The cache of Hugging Face's library holds nothing else."""
    snapshot = tmp_path / "cache/snapshots/0123"
    blobs = tmp_path / "cache/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(folder.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    refer(snapshot, tmp_path / "out")


@pytest.mark.parametrize("name", ["chat_template.jinja", "sentencepiece.bpe.model"])
def test_a_link_out_of_the_folder(folder, tmp_path, name):
    """What it leads to would be published with the model."""
    secret = tmp_path / "secret"
    if (folder / name).exists():
        (folder / name).rename(secret)
    else:
        secret.write_text("of mine")
    (folder / name).symlink_to(secret)
    refused(folder, tmp_path / "out", f"{name}: a link out of the folder")


# Weights.


BIAS = torch.zeros(260)
TABLE = torch.zeros(2, 16)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"lm_head.dense.weight": None}, "no tensor lm_head.dense.weight"),
        ({"roberta.adapter": torch.zeros(1)}, "'roberta.adapter' is nothing that"),
        ({"lm_head.bias": BIAS / 0}, "'lm_head.bias' holds NaN or infinite numbers"),
        ({"lm_head.bias": BIAS.int()}, "is of type I32, where weights are fp32, bf16 or fp16"),
        ({"lm_head.bias": BIAS.to(torch.float8_e4m3fn)}, "is of type F8_E4M3"),
        ({TYPES: TABLE}, "has shape (2, 16), by config.json (1, 16)"),
    ],
)
def test_weights(folder, tmp_path, changed, words):
    tensors = load_file(folder / "model.safetensors") | changed
    save_file(
        {name: tensor for name, tensor in tensors.items() if tensor is not None},
        folder / "model.safetensors",
    )
    refused(folder, tmp_path / "out", words)


class Runs:
    def __reduce__(self):
        return print, ("code of the file ran",)


@pytest.mark.parametrize(
    "content, words",
    [
        ({"lm_head.bias": torch.zeros(1).expand(10**12)}, "has fewer numbers than that"),
        ({"lm_head.bias": torch.zeros(260, device="meta")}, "'lm_head.bias' is not a dense tensor"),
        ({"lm_head.bias": BIAS / 0}, "lm_head.bias holds NaN or infinite numbers"),
        ({"weights": Runs()}, "pytorch_model.bin"),
        (Runs(), "pytorch_model.bin"),
    ],
)
def test_pickles(folder, tmp_path, content, words, capfd):
    if isinstance(content, dict):
        content = load_file(folder / "model.safetensors") | content
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    refused(folder, tmp_path / "out", words)
    if isinstance(content, Runs):
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(content, protocol=2))
        refused(folder, tmp_path / "out", words)
    assert "ran" not in capfd.readouterr().out


def test_code_of_a_folder_is_not_run(folder, tmp_path):
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).touch()
        content = json.loads((folder / name).read_text() or "{}")
        auto = {
            kind: f"code.{kind}" for kind in ("AutoConfig", "AutoModelForMaskedLM", "AutoTokenizer")
        }
        write_json(folder / name, {**content, "auto_map": auto})
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    try:
        refer(folder, tmp_path / "in")
        export_hf(tmp_path / "in", tmp_path / "out")
        assert "auto_map" not in (tmp_path / "out/tokenizer_config.json").read_text()
    except UserError:
        pass
    assert not (tmp_path / "ran").exists()


# Tokenizers: what transformers' own classes read otherwise than a tokenizer.json says is theirs to
# decide.


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda file: file["model"]["merges"].append("a b c"),
            "transformers cannot read its tokenizer",
        ),
        (
            lambda file: file.update(model={**file["model"], "vocab": {"<s>": 0}, "merges": []}),
            "tokenizer",
        ),
    ],
)
def test_a_damaged_tokenizer_json(roberta_json, tmp_path, capfd, change, words):
    folder = shutil.copytree(roberta_json, tmp_path / "hf")
    content = read_json(folder / "tokenizer.json")
    change(content)
    write_json(folder / "tokenizer.json", content)
    refused(folder, tmp_path / "out", words)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("place", ["vocab", "added_tokens", "Unigram"])
def test_ids_are_counted_before_a_tokenizer_is_made(roberta_json, tmp_path, place):
    folder = shutil.copytree(roberta_json, tmp_path / "hf")
    content = read_json(folder / "tokenizer.json")
    if place == "vocab":
        content["model"]["vocab"]["far"] = 2**31
    elif place == "added_tokens":
        content["added_tokens"][-1]["id"] = 2**31
    else:
        content["model"] = {"type": place, "vocab": [["a", 0.0]] * 3_000_000}
    write_json(folder / "tokenizer.json", content)
    refused(folder, tmp_path / "out", " ids, where config.json has vocab_size 40")


@pytest.mark.parametrize("name", ["vocab.json", "vocab.txt", "sentencepiece.bpe.model"])
def test_ids_of_older_files_are_counted_too(roberta, folder, tmp_path, name):
    """Minutes go by where transformers makes a tokenizer of so many, or of one so far."""
    if name == "vocab.json":
        folder = shutil.copytree(roberta, tmp_path / "roberta")
        change(folder / name, far=2**31)
    elif name == "vocab.txt":
        (folder / name).write_text("a\n" * 3_000_000)
    else:
        model = protobuf.ModelProto()
        for _ in range(300):
            model.pieces.add(piece="a")
        (folder / name).write_bytes(model.SerializeToString())
    refused(folder, tmp_path / "out", f"{name}: ", " ids, where config.json has vocab_size")


# Export and the commands.


def test_exports(xlm_r, tmp_path):
    refer(xlm_r, tmp_path / "in")
    body, pack = load_model(tmp_path / "in")
    save_adaptation(
        tmp_path / "stranger", dataclasses.replace(pack, space="0" * 16), tmp_path / "in/tokenizer"
    )
    (tmp_path / "moved").mkdir()
    save_body(tmp_path / "alone", prefix(body, 3), "mini-model", tmp_path / "in")
    shutil.move(tmp_path / "alone", tmp_path / "moved")
    for arguments, words in [
        (
            (tmp_path / "moved/alone", tmp_path / "out"),
            "was made of the model .* which is not there; put it back",
        ),
        ((tmp_path / "in", tmp_path / "out", None, 2), "no language-model head of depth 2"),
        ((tmp_path / "in", tmp_path / "out", tmp_path / "stranger"), "embedding space"),
        ((tmp_path / "in", tmp_path / "in"), "exists"),
    ]:
        with refuses(words):
            export_hf(*arguments)
    assert not (tmp_path / "out").exists()


def test_the_command(xlm_r, tmp_path):
    with refuses(r"--language 'de\\n\\n<script>'"):
        refer(xlm_r, tmp_path / "new", "de\n\n<script>")
    refer(xlm_r, tmp_path / "in", "en")
    code, _, line = answer(f"export-hf {tmp_path}/in {tmp_path}/out")
    assert code == 0, line
    assert line == f"{tmp_path}/out: written\n"
    before = load_file(xlm_r / "model.safetensors")
    after = load_file(tmp_path / "out/model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for model, words in (
        (tmp_path / "no/model", "no such folder; give the folder of a"),
        (xlm_r, "is taken by `base:`"),
    ):
        code, _, line = answer(f"export-hf {model} {tmp_path}/new")
        assert code == 2, line
        assert line.count("\n") == 1, line
        assert words in line, line
