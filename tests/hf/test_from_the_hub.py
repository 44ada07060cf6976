"""`import-hf NAME`: from a Hub on this machine, what is needed and nothing else; one line for what is not there."""

import json

import pytest

from ..forks import run
from ..serve.hub_server import COMMIT, hub  # noqa: F401

NAME = "someone/roberta-small"


@pytest.fixture
def call(hub, tmp_path):  # noqa: F811
    """Run import-hf with the Hub here -> (exit code, standard error)."""
    own = hub.variables(tmp_path)
    return lambda *arguments: run("import-hf", *arguments, cwd=tmp_path, **own)[::2]


@pytest.fixture
def files(hub, roberta):  # noqa: F811
    """The files of a model on the Hub, with some that an import does not read."""
    found = {path.name: path.read_bytes() for path in roberta.iterdir()}
    hub.repositories[NAME] = found | {"pytorch_model.bin": b"x", "onnx/model.onnx": b"x", "training_args.bin": b"x"}
    return hub.repositories[NAME]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_a_model_is_fetched_and_imported(hub, call, files, roberta, tmp_path):  # noqa: F811
    assert call(NAME, "there", "--language", "en", "--revision", "main")[0] == 0
    assert call(roberta, "here", "--language", "en")[0] == 0
    for part in ("body", "pack"):
        there, here = (manifest(tmp_path / place / part) for place in ("there", "here"))
        assert there["files"] == here["files"]
        assert (there["imported_from"], there["base_model"], there["revision"]) == (NAME, NAME, COMMIT)
        assert "revision" not in here
    asked = " ".join(hub.requests)
    assert "model.safetensors" in asked and not any(name in asked for name in ("pytorch_model", "onnx", "training"))


def test_a_model_is_planned_by_its_configuration_alone(hub, files, tmp_path):  # noqa: F811
    code, out, err = run("plan", NAME, cwd=tmp_path, **hub.variables(tmp_path))
    assert code == 0 and "(all) |" in out, err
    assert not any(name in " ".join(hub.requests) for name in ("safetensors", "tokenizer"))
    code, out, err = run("plan", "someone/nothing", cwd=tmp_path, **hub.variables(tmp_path))
    assert code == 2 and err.count("\n") == 1 and "it was looked for on the Hub" in err


def test_what_is_not_there(hub, call, files, tmp_path):  # noqa: F811
    for arguments, words in (
        (("someone/nothing", "out"), "someone/nothing on http"),
        ((NAME, "out", "--revision", "never"), f"{NAME} on http"),
        (("no such folder", "out"), "no such folder is no folder here, so it was looked for on the Hub"),
        ((tmp_path, "out", "--revision", "main"), "is a folder here; leave the option out"),
    ):
        code, err = call(*arguments)
        assert code == 2 and err.count("\n") == 1 and words in err, err
    del files["config.json"]
    code, err = call(NAME, "out")
    assert code == 2 and "no config.json" in err and "is no folder here, so it was looked for on the Hub" in err
    assert not (tmp_path / "out").exists()
