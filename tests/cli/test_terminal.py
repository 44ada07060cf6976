"""What people meet at a terminal: what they mistype, wrong paths, what a machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel import api
from ds_minimodel.cli import look
from ds_minimodel.cli.main import parse
from ds_minimodel.cli.options import given_of
from ds_minimodel.common.files import lock
from ds_minimodel.extend.config import ExtendConfig, option_of
from tests.helpers.refusals import refuses

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("extend m t --langauge de", r"--langauge de \(did you mean --language\?\)"),
        ("extnd m t", r"'extnd' .*choose from .*extend"),
        ("pack plug b p o --on", "--on"),
        ("extend m t --language de --hours 1d", "--hours 1d: it is no amount"),
        ("extend m t --language de --tokens 0.4", "--tokens 0.4: Input should be a valid integer"),
    ],
)
def test_what_is_mistyped_is_named(arguments, said):
    with refuses(said):
        options = parse(arguments.split())
        options.run(options)


def test_an_amount_is_read_in_decimals():
    options = parse("extend m t --language de --tokens 16.1k".split())
    assert ExtendConfig(**given_of(options, ExtendConfig)).tokens == 16_100


def test_each_field_of_extends_configuration_is_an_option(capsys, monkeypatch):
    """Its docstring is the help, and a command line that gives all makes the configuration."""
    values = {
        "vocab_size": "1k",
        "strength": "0.5",
        "hours": "2",
        "ranks": "2",
        "train": "embeddings",
    }
    values |= {"pooling": "cls", "mini": "3+1"}
    line = ["extend"]
    for name in ExtendConfig.model_fields:
        if name != "tokens":  # which stands in the place of hours
            value = "fr=x" if name == "known_text" else values.get(name, "x")
            line += [value] if name in ("model", "text") else [option_of(name), value]
        if name == "pair_columns":
            line.append("y")
    config = ExtendConfig(**given_of(parse([*line, "--source", "en"]), ExtendConfig))
    assert config.model_fields_set == ExtendConfig.model_fields.keys() - {"tokens"}
    assert config.vocab_size == 1000
    assert config.known_text == {"fr": ["x"]}
    assert config.chats == ["x"]
    assert config.text == ["x"]
    assert config.pair_columns == ["x", "y"]
    monkeypatch.setenv("COLUMNS", "1000")  # so that no word is broken
    with pytest.raises(SystemExit):
        parse(["extend", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in ExtendConfig.model_fields.values():
        assert " ".join(field.description.split()) in shown


WRONG_PATHS = [
    (["nothere/model", "a.txt"], "nothere/model: no such folder or GGUF file"),
    (["./nowhere", "a.txt"], "nowhere: no such folder or GGUF file"),
    (["nothere.GGUF", "a.txt"], "nothere.GGUF: no such folder or GGUF file"),
    (
        ["a.txt", "model"],
        "a.txt: neither a folder of a model nor a GGUF file; MODEL comes first, then TEXT",
    ),
    (["model", "b.txt"], "b.txt: no such text file"),
    (
        ["model", "a.txt", "--source-text", "b.txt", "--source-text", "a.txt"],
        "b.txt: no such text file",
    ),
    (
        ["model", "a.txt", "--source-text", "a.txt"],
        "a.txt: text of xx and of en; give each another file",
    ),
    (
        ["model", "a.txt", "--test-text", "a.txt"],
        "a.txt: text of xx and of --test-text; give each another file",
    ),
    (
        ["model", "a.txt", "--known-text", "a.txt"],
        "--known-text a.txt: a.txt has no language; give it with one, such as fr=a.txt",
    ),
    (["model", "a.txt", "--out", "a.txt"], "a.txt: this is a file, and --out names a folder"),
]
WRONG_PATHS = [
    (["extend", *arguments, "--language", "xx"], said) for arguments, said in WRONG_PATHS
]
WRONG_PATHS += [(["bits", "model", "b.txt"], "b.txt: no such text file")]


@pytest.mark.parametrize("arguments, said", WRONG_PATHS)
def test_paths_are_looked_at_before_anything_heavy_is_loaded(arguments, said, tmp_path):
    for folder in ("model", "nothere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a.txt").write_text("a boat\n")
    code = "import sys; from ds_minimodel.cli.main import main\ntry: main()\n"
    code += (
        "finally: print(sorted({'torch', 'transformers', 'deepspeed', 'pandas'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "[]\n", done.stderr
    assert done.stderr.startswith(f"ds-minimodel: {said}")
    assert done.stderr.count("\n") == 1


def test_status_of_a_folder_of_extend(tmp_path):
    def said():
        with refuses() as refused:
            options = parse(["status", str(tmp_path)])
            options.run(options)
        return str(refused.value)

    (tmp_path / "call.json").write_text("{}")
    assert said() == f"{tmp_path}: extend has no recipe yet, and so no jobs; the same call resumes"
    with lock(tmp_path / ".lock"):
        assert f"process {os.getpid()} on {os.uname().nodename} reads the text" in said()
    (tmp_path / "recipe.yaml").write_text("workdir: 3\n")
    assert said().startswith(f"{tmp_path}/recipe.yaml:")


def test_a_file_of_weights_is_planned_over(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    options = parse(["plan", str(tmp_path / "model.gguf")])
    with refuses("GGUF"):
        options.run(options)


def test_names_of_the_api():
    assert {*api.__all__} <= {*dir(api)}
    assert all(getattr(api, name) for name in dir(api))


def test_doctor_finds_launchers_beside_its_python(tmp_path, monkeypatch):
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    lines = look.report().splitlines()
    assert f"launcher torchrun: {tmp_path}/torchrun" in lines
    assert "launcher ssh: not found" in lines


def test_an_option_is_not_shortened():
    with refuses("unrecognized arguments: --rank 2"):
        parse(["run", "quickstart", "--rank", "2"])
