"""A base by its name: from a Hub on this machine, what is needed and nothing else; one line for
what is not there.
"""

import shutil

import pytest
from huggingface_hub import constants

from ds_minimodel.artifacts.base import config_of, identity_of_base, refer
from ds_minimodel.common.files import read_json
from tests.helpers.refusals import refuses

from ..forks import run
from ..hf.hub_server import COMMIT, hub  # noqa: F401
from .sentence_models import save_sentence_model

NAME = "someone/roberta-small"


@pytest.fixture
def files(hub, roberta, tmp_path, monkeypatch):  # noqa: F811
    """The files of a model on the Hub that this process knows, with some that a base does not
    need.
    """
    values = {
        "ENDPOINT": hub.endpoint,
        "HF_HUB_CACHE": f"{tmp_path}/cache",
        "HF_HUB_DISABLE_XET": True,
    }
    values["HUGGINGFACE_CO_URL_TEMPLATE"] = (
        hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    found = {path.name: path.read_bytes() for path in roberta.iterdir()}
    hub.repositories[NAME] = found | {
        "pytorch_model.bin": b"x",
        "onnx/model.onnx": b"x",
        "training_args.bin": b"x",
    }
    return hub.repositories[NAME]


def test_a_model_is_fetched(hub, files, roberta, tmp_path):  # noqa: F811
    refer(f"{NAME}@main", tmp_path / "there", "en")
    refer(roberta, tmp_path / "here", "en")
    there = read_json(tmp_path / "there/manifest.json")
    here = read_json(tmp_path / "here/manifest.json")
    assert there["files"] == here["files"]
    assert there["body"] == here["body"]
    assert there["imported_from"] == NAME
    assert there["base_model"] == NAME
    assert there["revision"] == COMMIT
    assert "revision" not in here
    asked = " ".join(hub.requests)
    assert "model.safetensors" in asked
    assert not any(name in asked for name in ("pytorch_model", "onnx", "training"))


def test_a_model_is_planned_by_its_configuration_alone(hub, files, tmp_path):  # noqa: F811
    code, out, err = run("plan", NAME, cwd=tmp_path, **hub.variables(tmp_path))
    assert code == 0, err
    assert "| adapt |" in out, err
    assert not any(
        name in " ".join(hub.requests) for name in ("safetensors", "tokenizer.json", "vocab")
    )
    code, out, err = run("plan someone/nothing", cwd=tmp_path, **hub.variables(tmp_path))
    assert code == 2
    assert err.count("\n") == 1
    assert "it was looked for on the Hub" in err


def test_a_sentence_encoder_is_fetched_with_what_its_head_needs(
    hub,  # noqa: F811
    files,
    roberta,
    tmp_path,
):
    folder = save_sentence_model(roberta, tmp_path / "theirs", dense=8, max_seq_length=60)
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    hub.repositories["someone/vectors"] = found | {"openvino/openvino_model.xml": b"x"}
    known = config_of("someone/vectors").config.head
    assert known.max_length == 60
    assert known.projections[0].outputs == 8
    assert "safetensors" not in " ".join(hub.requests)
    refer("someone/vectors", tmp_path / "there", "en")
    refer(folder, tmp_path / "here", "en")
    there = read_json(tmp_path / "there/manifest.json")
    here = read_json(tmp_path / "here/manifest.json")
    assert there["body"] == here["body"]
    assert "2_Dense/model.safetensors" in " ".join(hub.requests)
    assert "openvino" not in " ".join(hub.requests)


def test_a_hub_that_is_not_reached(hub, files, tmp_path, monkeypatch, capsys):  # noqa: F811
    """Compute nodes have no network: what the cache has serves, and is named."""
    refer(NAME, tmp_path / "there", "en")
    capsys.readouterr()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    refer(NAME, tmp_path / "offline", "en")
    refer(NAME, tmp_path / "again", "en")
    assert len(hub.requests) == asked
    assert capsys.readouterr().err.count("is not reached; /") == 1
    there = read_json(tmp_path / "there/manifest.json")
    offline = read_json(tmp_path / "offline/manifest.json")
    assert there == offline
    with refuses("someone/other on http.*offline"):
        refer("someone/other", tmp_path / "out")


def test_a_folder_that_is_taken_away_is_not_looked_for(hub, roberta, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(roberta, "m")
    config_of(folder)
    shutil.rmtree(folder)
    for look in (config_of, identity_of_base):
        with refuses("m: was here when this began"):
            look(folder)
        with refuses("no such folder or GGUF file, and no name on the Hub"):
            look(tmp_path / "never")
    assert not hub.requests


def test_what_is_not_there(files, tmp_path):
    def refusal(model):
        with refuses() as error:
            refer(model, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return str(error.value)

    for model, words in (
        ("someone/nothing", "someone/nothing on http"),
        (f"{NAME}@never", f"{NAME} on http"),
        ("no such folder", "no such folder: no such folder or GGUF file, and no name on the Hub"),
    ):
        assert words in refusal(model)
    del files["config.json"]
    line = refusal(NAME)
    assert "no config.json" in line
    assert "is no folder here, so it was looked for on the Hub" in line
