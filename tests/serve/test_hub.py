"""Packs on a Hub: what was pushed is pulled, byte for byte; anything else is one line, and nothing is written."""

import json
import shutil
import signal

import pytest
import yaml
from huggingface_hub import constants

from ds_minimodel.cli.main import main
from ds_minimodel.models.artifacts import identity

from ..forks import run as run_fork
from .hub_server import hub  # noqa: F401

REPOSITORY = "someone/pack-de"


@pytest.fixture
def run(hub, capsys):  # noqa: F811
    """Run a command of `pack` with the Hub here -> (exit code, standard output, standard error)."""

    def run(*arguments, endpoint=hub.endpoint):
        with pytest.raises(SystemExit) as stop:
            main(["pack", *map(str, arguments), *(["--endpoint", endpoint] if endpoint else [])])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


def refused(answer, *words):
    code, out, line = answer
    assert (code, out) == (2, "") and line.startswith("ds-minimodel: ") and line.count("\n") == 1, answer
    assert all(word in line for word in words), line


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back(family, hub, run, tmp_path):  # noqa: F811
    code, out, error = run("push", family.de, REPOSITORY, "--private")
    assert (code, out) == (0, f"{identity(family.de)}\n"), error
    assert hub.private == {REPOSITORY}
    assert len(hub.blobs) == 1  # the weights, by LFS
    _, front, text = hub.repositories[REPOSITORY]["README.md"].decode().split("---\n")
    card = yaml.safe_load(front)
    assert card["language"] == "de" and card["library_name"] == "ds_minimodel" and "license" not in card
    assert card["ds_minimodel"] == {"steps": 7, "eflops": 0.5, "embedding_space": family.space}
    assert "Language pack de" in text

    assert run("push", family.de, REPOSITORY)[0] == 0  # again, to a repository that is there
    code, out, error = run("pull", REPOSITORY, tmp_path / "new/de", "--identity", identity(family.de)[:12])
    assert (code, out) == (0, f"{identity(family.de)}\n"), error
    assert contents(tmp_path / "new/de") == contents(family.de)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["de"]
    assert run("pull", REPOSITORY, tmp_path / "again", "--revision", "main")[0] == 0


@pytest.fixture
def remote(family, hub, run):  # noqa: F811
    """Files of the pack on the Hub, to be damaged."""
    assert run("push", family.de, REPOSITORY)[0] == 0
    return hub.repositories[REPOSITORY]


def test_the_endpoint_of_the_environment(remote, family, hub, tmp_path):  # noqa: F811
    assert run_fork("pack", "pull", REPOSITORY, tmp_path / "de", **hub.variables(tmp_path))[0] == 0
    assert contents(tmp_path / "de") == contents(family.de)


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda files: files.update({"embeddings.safetensors": flipped(files["embeddings.safetensors"])}), "damaged"),
        (lambda files: files.pop("tokenizer.model"), "(no tokenizer.model)"),
        (lambda files: files.pop("manifest.json"), "(no manifest.json)"),
        (
            lambda files: files.update({"manifest.json": files["manifest.json"].replace(b"tokenizer.model", b"../x")}),
            "no name below the folder",
        ),
        (
            lambda files: files.update({"manifest.json": files["manifest.json"].replace(b"tokenizer.model", b"a/x")}),
            "'a/x', and a pack has no folders",
        ),
        (
            lambda files: files.update({"manifest.json": files["manifest.json"].replace(b"language-pack", b"scores")}),
            "not a language pack",
        ),
    ],
)
def test_what_arrives_otherwise(remote, hub, run, tmp_path, damage, words):  # noqa: F811
    damage(remote)
    answer = run("pull", REPOSITORY, tmp_path / "de")
    refused(answer, f"{REPOSITORY} on {hub.endpoint}: not a whole pack", words, "ask its owner")
    assert "from a copy" not in answer[2] and "de.tmp" not in answer[2]
    assert not list(tmp_path.iterdir())


def test_an_etag_that_is_a_path(remote, hub, run, tmp_path):  # noqa: F811
    hub.etag = "a/../../x"
    refused(run("pull", REPOSITORY, tmp_path / "de"), REPOSITORY)
    assert not list(tmp_path.iterdir())


def test_mistakes(remote, family, hub, run, tmp_path):  # noqa: F811
    (tmp_path / "de").mkdir()
    refused(run("pull", REPOSITORY, tmp_path / "de"), "exists")
    refused(run("pull", "someone/nothing", tmp_path / "out"), "someone/nothing")
    refused(run("pull", "no name at all!", tmp_path / "out"), "no name at all!")
    refused(run("pull", REPOSITORY, tmp_path / "out", "--revision", "never"), REPOSITORY)
    refused(run("pull", REPOSITORY, tmp_path / "out", "--identity", "0" * 64), "the pack there is")
    refused(run("pull", REPOSITORY, tmp_path / "out", "--identity", "de"), "--identity")
    damaged = shutil.copytree(family.de, tmp_path / "damaged")
    manifest = json.loads((damaged / "manifest.json").read_text())
    (damaged / "manifest.json").write_text(json.dumps({**manifest, "vocab_size": 3}))
    requests = len(hub.requests)
    refused(run("push", damaged, "someone/else"), "damaged")
    refused(run("push", tmp_path / "none", "someone/else"), "none")
    refused(run("push", family.de, "someone/else", "--endpoint", "", endpoint=None), "--endpoint is empty")
    assert len(hub.requests) == requests and sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "de"]


def test_a_hub_without_xet(family, hub, run, monkeypatch):  # noqa: F811
    """Nothing is left of a repository that was made for the pack; one that was there stays."""
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    refused(run("push", family.de, REPOSITORY), REPOSITORY, hub.endpoint, "HF_HUB_DISABLE_XET=1")
    assert not hub.repositories
    hub.repositories[REPOSITORY] = {"notes.txt": b"mine"}
    refused(run("push", family.de, REPOSITORY), "HF_HUB_DISABLE_XET=1")
    assert hub.repositories == {REPOSITORY: {"notes.txt": b"mine"}}


def test_interrupted(family, hub, run, tmp_path):  # noqa: F811
    """Whole or nothing, on either side; the same command does it afterwards."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    for command, place in (
        (("push", family.de, REPOSITORY), "/commit/main"),
        (("pull", REPOSITORY, tmp_path / "de"), "/embeddings.safetensors"),
    ):
        before, hub.interrupts = hub.repositories.copy(), place
        code, _, line = run(*command)
        assert code == 1 and line.startswith("ds-minimodel: interrupted") and line.count("\n") == 1
        assert hub.repositories == before and not list(tmp_path.iterdir())
        hub.interrupts = None
        assert run(*command)[0] == 0
    assert contents(tmp_path / "de") == contents(family.de)


def test_nobody_answers(family, run, tmp_path):
    refused(run("pull", REPOSITORY, tmp_path / "out", endpoint="http://127.0.0.1:9"), "127.0.0.1:9", "HF_ENDPOINT")
    refused(run("push", family.de, REPOSITORY, endpoint="http://127.0.0.1:9"), "127.0.0.1:9")
    assert not (tmp_path / "out").exists()
