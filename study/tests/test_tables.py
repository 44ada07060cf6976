"""study/tables.py: what it makes of the scores that are kept, and of runs that have just ended."""

import itertools
import json
import lzma
import re
from xml.etree import ElementTree

import pytest

from ds_minimodel.common.files import write_json
from tests.docs import ROOT, import_script
from tests.report.some_runs import score_row

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script():
    return import_script("study/tables.py")


def test_tables_and_picture_are_those_of_the_scores(script, tmp_path):
    (tmp_path / script.SCORES).write_bytes((ROOT / "study" / script.SCORES).read_bytes())
    script.write(tmp_path)
    for name in (script.PAGE, script.PICTURE):
        assert (tmp_path / name).read_text() == (ROOT / "study" / name).read_text(), "run python study/tables.py"


def test_the_scores_of_finished_runs_are_gathered(script, tmp_path):
    for name, seed in (("seed-1", 1), ("seed-11", 11), ("depth-3", 1)):
        for system, finetuning in itertools.product(("bl_base", "minijoint"), (seed, seed + 1)):
            row = score_row(system, "topic", "de", finetuning, 0, 0.0, 50.0)
            write_json(tmp_path / f"{name}/evaluate/{system}/de/topic/seed-{finetuning}/scores.json", [row])
        if name == "seed-11":  # English is scored once a body
            for system, language in (("minipost", "de"), ("bl_base", "en")):
                row = score_row(system, "topic", language, seed, 0, 0.0, 70.0)
                write_json(tmp_path / f"{name}/evaluate/{system}/{language}/topic/seed-{seed}/scores.json", [row])
        write_json(tmp_path / name / "report/scores.json", [])
    write_json(tmp_path / "depth-6/evaluate/bl_base/de/topic/seed-1/scores.json", [])  # not finished
    script.gather(tmp_path)
    rows = json.loads(lzma.decompress((tmp_path / script.SCORES).read_bytes()))
    assert {row["run"] for row in rows} == {"depth-3", "seed-1", "seed-11"}
    assert {tuple(row["seed"]) for row in rows if row["run"] == "seed-11"} == {(11, 11), (11, 12)}
    assert {row["system"] for row in rows if row["language"] == "en"} == {"bl_base", "minipost"}
    read = script.read_scores(tmp_path)
    assert {row["system"] for row in read} == {"bl_base", "minijoint", "minipost", "bl_base N=3", "minijoint N=3"}


def test_a_folder_without_scores_is_refused_in_a_line(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tables.py", str(tmp_path)])
    assert script.main() == 2 and not list(tmp_path.iterdir())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ds-minimodel: {tmp_path}/scores.json.xz: no such file")


def test_the_pictures_of_the_pages_follow_the_readers_mode():
    for path in [*(ROOT / "docs/pictures").glob("*.svg"), ROOT / "study/score_against_compute.svg"]:
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).find(f"{SVG}title") is not None
        assert "prefers-color-scheme: dark" in text and not re.search(r"<script|href=", text)
