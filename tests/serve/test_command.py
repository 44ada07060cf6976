"""`pack` and `predict` as commands: what they print, and one line with exit code 2 for a mistake."""

import io
import json
import shutil
import subprocess
import sys

import pytest
import torch

from ds_minimodel.cli.main import main


@pytest.fixture
def call(capsys, monkeypatch):
    """Run a command in this process: (exit code, lines of standard output, lines of standard error)."""

    def call(*arguments, typed=""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode(errors="surrogateescape"))))
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out.splitlines(), err.splitlines()

    return call


def test_show(family, call):
    code, lines, _ = call("pack", "show", family.de)
    assert code == 0 and "language: de" in lines and f"space: {family.space}" in lines and "vocab_size: 33" in lines
    code, lines, _ = call("pack", "show", family.de, "--json")
    assert code == 0 and json.loads("\n".join(lines))["steps"] == 7


def test_check(family, other_family, call):
    assert call("pack", "check", family.de, family.qa)[:2] == (0, [f"{family.de}: whole, fits {family.qa}"])
    for arguments in ((family.de, other_family.body), (family.body,), (family.root / "none",)):
        code, out, err = call("pack", "check", *arguments)
        assert code == 2 and not out and len(err) == 1 and err[0].startswith("ds-minimodel: ")


def test_names_are_printable(family, tmp_path, call):
    """A name may hold what a terminal would obey; a stranger's language may not."""
    pack = shutil.copytree(family.de, tmp_path / "\033[31m\n/pack")
    manifest = json.loads((pack / "manifest.json").read_text())
    assert call("pack", "check", pack)[1] == [f"{tmp_path}/\\x1b[31m\\n/pack: whole"]
    (pack / "manifest.json").write_text(json.dumps({**manifest, "language": "de\033[2J"}))
    code, out, (line,) = call("pack", "show", pack)
    assert code == 2 and not out and "\033" not in line


def test_plugged_together_they_serve(family, tmp_path, call):
    assert call("pack", "plug", family.classification, family.zh, tmp_path / "out")[0] == 0
    code, lines, _ = call("predict", tmp_path / "out/body", typed="今天的天气很好\n小狗\n")
    assert code == 0 and [json.loads(line)["label"] in ("no", "perhaps", "yes") for line in lines] == [True, True]


def test_a_file_is_answered_line_by_line(family, tmp_path, call):
    file = tmp_path / "questions.jsonl"
    rows = [{"id": 7, "language": "zh", "text": "小狗"}, {"id": 8, "language": "de", "text": "Hund", "more": 1}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    packs = ("--pack", f"de={family.de}", "--pack", f"zh={family.zh}")
    code, lines, _ = call("predict", family.classification, file, *packs)
    answers = [json.loads(line) for line in lines]
    assert code == 0 and [(row["id"], row["language"]) for row in answers] == [(7, "zh"), (8, "de")]
    assert all(list(row) == ["id", "language", "label", "scores"] for row in answers)
    with open(file, "a", encoding="utf-8") as out:
        out.write('{"language": "fr", "text": "chien"}\n')
    code, lines, err = call("predict", family.classification, file, *packs)
    assert code == 2 and not lines and "questions.jsonl:3: no pack for language 'fr'" in err[0]
    file.write_text("小狗\n\n")
    code, lines, err = call("predict", family.classification, file, *packs[2:])
    assert (code, lines) == (2, []) and f"{file}:2: empty; type text with tabs between" in err[0]


def test_a_conversation_goes_on_after_a_wrong_line(family, call):
    typed = [
        "de\tder Hund\tdie Wiese",
        "de\tder Hund",
        '{"language": "zh", "sentence1": "小", "sentence2": "狗"}',
        '{"a',
        "de\tbad \udcff byte\tdie Wiese",
        "",
        "",
    ]
    packs = ("--pack", f"de={family.de}", "--pack", f"zh={family.zh}")
    code, lines, err = call("predict", family.pair, *packs, typed="\n".join(typed))
    assert code == 0 and len(lines) == 2 and len(err) == 5
    assert err[0].startswith("predict: answers in ")
    assert "line 2: 2 fields; type language, sentence1, sentence2 with tabs between" in err[1]
    assert "line 4: not JSON" in err[2]
    assert "line 5: 'sentence1' holds half a surrogate pair" in err[3]
    assert "line 6: empty; type language, sentence1, sentence2 with tabs between" in err[4]


BAD_LINES = {
    '{"text": ' + "[" * 2000 + "]" * 2000 + "}": "nested too deeply",
    '{"text": ' + "[" * 900 + "]" * 900 + "}": "'text' is a list, not text",
    "a\0b": "'text' holds a NUL character",
    '{"text": "\\ud800"}': "half a surrogate pair",
    '{"text": 7}': "'text' is 7, not text",
    '{"text": %s}' % ("9" * 5000): "a number has thousands of digits",
    '{"text": "Hund", "text": "Wiese"}': "the key 'text' comes twice",
    '{"a\\nb": 1}': "no 'text'; there are: a b",
    "[1, 2": "answered",  # no object: a text like others
    "der\rHund\r": "answered",  # one line
}


def test_every_bad_line_gets_one_line_and_the_next_is_answered(family, call):
    """A byte order mark before the first is no part of it."""
    typed = "\ufeff" + "".join(f"{line}\nder Hund\n" for line in BAD_LINES)
    code, lines, err = call("predict", family.classification, "--pack", f"de={family.de}", typed=typed)
    refused = [(2 * number + 1, words) for number, words in enumerate(BAD_LINES.values()) if words != "answered"]
    assert code == 0 and len(lines) == 2 * len(BAD_LINES) - len(refused) and len(err) == 1 + len(refused)
    for line, (number, words) in zip(err[1:], refused):
        assert line.startswith(f"ds-minimodel: line {number}: ") and words in line and len(line) < 1200
    assert lines[1] == lines[3]


def test_each_line_is_answered_before_the_next_is_typed(family):
    options = f"predict {family.body} --pack de={family.de} --head 1 --top 2".split()
    command = [sys.executable, "-m", "ds_minimodel", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(2):
            process.stdin.write("der <mask> läuft\n")
            process.stdin.flush()
            assert len(json.loads(process.stdout.readline())["masks"][0]) == 2
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="of CPUs")
def test_it_says_in_which_precision_it_answers(family, call, monkeypatch):
    arguments = ("predict", family.classification, "--pack", f"de={family.de}")
    monkeypatch.setattr("ds_minimodel.ops.precision.has_bf16_products", lambda: True)
    answers = {}
    for given, name in (((), "fp32"), (("--precision", "auto"), "bf16")):
        code, answers[name], err = call(*arguments, *given, typed="der Hund\n")
        assert code == 0 and err == [f"predict: answers in {name} on the CPU"]
    assert answers["fp32"] != answers["bf16"]
    for name, message in (
        ("fp16", "--precision: fp16 needs a GPU; use bf16, fp32 or auto"),
        ("fp8", "--precision fp8: there are fp32, bf16, fp16 and auto"),
    ):
        code, lines, err = call(*arguments, "--precision", name)
        assert code == 2 and not lines and err == [f"ds-minimodel: {message}"]
