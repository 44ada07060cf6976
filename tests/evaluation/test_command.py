"""`pack` as a command: what they print, and one line with exit code 2 for a mistake."""

import json
import shutil

import pytest

from ds_minimodel.cli.main import main


@pytest.fixture
def call(capsys):
    """Run a command in this process: (exit code, lines of standard output, lines of standard
    error).
    """

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out.splitlines(), err.splitlines()

    return call


def test_show(family, other_family, call):
    code, lines, _ = call("pack", "show", family.de)
    assert (
        code == 0
        and "language: de" in lines
        and f"space: {family.space}" in lines
        and "vocab_size: 33" in lines
    )
    code, lines, _ = call("pack", "show", family.de, "--json")
    facts, file = json.loads("\n".join(lines)), "embeddings.safetensors"
    assert code == 0 and facts["files"][file] == (family.de / file).stat().st_size
    assert (facts["steps"], facts["eflops"], facts["initialisation"]) == (7, 0.5, "overlap")
    assert call("pack", "show", family.de, family.qa)[0] == 0
    for arguments in ((family.de, other_family.model), (family.root,), (family.root / "none",)):
        code, out, err = call("pack", "show", *arguments)
        assert code == 2 and not out and len(err) == 1 and err[0].startswith("ds-minimodel: ")


def test_names_are_printable(family, tmp_path, call):
    """A name may hold what a terminal would obey; a stranger's language may not."""
    pack = shutil.copytree(family.de, tmp_path / "\033[31m\n/pack")
    manifest = json.loads((pack / "manifest.json").read_text())
    (pack / "manifest.json").write_text(json.dumps({**manifest, "language": "de\033[2J"}))
    code, out, (line,) = call("pack", "show", pack)
    assert code == 2 and not out and "\033" not in line
