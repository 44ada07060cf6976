"""docs/packs.md: every command and every line of code in them runs."""

import io
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ds_minimodel.cli import main

from .serve.conftest import make_family

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folders that packs.md names."""
    root = tmp_path_factory.mktemp("docs")
    make_family(root / "family", "0123456789abcdef")
    for name, place in {"classification": "finetune/minijoint/topic/seed-1/model", "de": "adapt/minijoint/de/pack",
                        "zh": "adapt/minijoint/tr/pack", "body": "pretrain/minijoint/body"}.items():
        shutil.copytree(root / "family" / name, root / place)
    requests = [{"language": "de", "text": "der Hund"}, {"language": "tr", "text": "köpek"}]
    (root / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)), encoding="utf-8")
    return root


def test_commands_of_packs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    commands = "".join(blocks("packs.md", "")).splitlines()
    assert len(commands) == 9
    for command in commands:
        before, _, command = command.rpartition(" | ")
        typed = shlex.split(before)[1].encode().decode("unicode_escape").encode("latin-1").decode() if before else ""
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        assert stop.value.code == 0 and (out or "plug" in command), f"{command}: {err}"
        if typed:
            assert len(out.splitlines()) == len(typed.splitlines())


def test_code_of_packs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (code,) = blocks("packs.md", "python")
    exec(compile(code, "packs.md", "exec"), {})
    assert "'label':" in capsys.readouterr().out
