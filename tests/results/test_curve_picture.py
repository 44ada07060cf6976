"""README's picture of score against compute: scripts/curve_picture.py on the scores of a report."""

import importlib.util
import itertools
import json
import re
from xml.etree import ElementTree

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.results.render import PALETTES

from ..docs import ROOT
from .some_runs import FINAL, some_run
from .test_page_in_a_browser import ENOUGH, luminance

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("curve_picture", ROOT / "scripts/curve_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_system_has_its_line_and_its_last_score(script, tmp_path, monkeypatch):
    write_json(tmp_path / "scores.json", some_run(systems=tuple(FINAL), tasks=("topic", "qa")).target_scores)
    monkeypatch.setattr("sys.argv", ["curve_picture.py", str(tmp_path), str(tmp_path / "curve.svg")])
    assert script.main() == 0
    drawing = ElementTree.parse(tmp_path / "curve.svg").getroot()
    lines = [line.get("points").split() for line in drawing.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [3] * 5
    named = [text for text in drawing.iter(f"{SVG}text") if (text.get("class") or "").startswith("f")]
    names = {text.text: float(text.get("y")) for text in named}
    assert names.keys() == {"BL_BASE 60.5", "BL_SMALL 50.5", "MiniPost 59.5", "MiniJoint 58.5", "MultiJoint 59.5"}
    heights = sorted(names.values())
    assert min(below - above for above, below in itertools.pairwise(heights)) >= 18
    assert names["BL_BASE 60.5"] == heights[0] and names["BL_SMALL 50.5"] == heights[-1]


@pytest.mark.parametrize("shift", [0, 1, 10], ids=["the same seeds", "some of the same", "others"])
def test_runs_of_several_seeds_make_one_line(script, tmp_path, shift):
    rows = some_run(systems=("bl_base", "minijoint")).target_scores
    for name, more in (("one", 0), ("other", 2)):
        of_run = [{**row, "seed": row["seed"] + shift * more, "score": row["score"] + more} for row in rows]
        write_json(tmp_path / name / "scores.json", of_run)
    one, unit = script.averages([tmp_path / "one"])
    both, same = script.averages([tmp_path / "one", tmp_path / "other"])
    assert unit == same and both == {
        system: [(compute, pytest.approx(score + 1)) for compute, score in curve] for system, curve in one.items()
    }
    of_one = [row for row in rows if row["system"] == "bl_base"]
    write_json(tmp_path / "other/scores.json", of_one)
    with pytest.raises(UserError, match="other/scores.json: other systems, tasks, languages or steps than"):
        script.averages([tmp_path / "one", tmp_path / "other"])


SCORE = {"system": "minijoint", "task": "topic", "language": "de", "seed": 1, "step": 3, "eflops": 1.0, "score": 5.0}


@pytest.mark.parametrize(
    "scores, words",
    [
        (None, "no such file"),
        ("{", "not a readable JSON file"),
        ("{}", "make the report again"),
        ("[]", "no scores after training"),
        (json.dumps([{**SCORE, "eflops": 0.0}]), "no scores after training"),
        (json.dumps([{**SCORE, "system": "mine"}]), "'mine' is no system"),
        (
            json.dumps([SCORE, {**SCORE, "task": "qa", "language": "tr", "system": "bl_base"}]),
            "bl_base is not scored in",
        ),
    ],
)
def test_scores_that_give_no_picture(script, tmp_path, monkeypatch, capsys, scores, words):
    if scores is not None:
        (tmp_path / "scores.json").write_text(scores)
    monkeypatch.setattr("sys.argv", ["curve_picture.py", str(tmp_path), str(tmp_path / "curve.svg")])
    assert script.main() == 2 and not (tmp_path / "curve.svg").exists()
    error = capsys.readouterr().err
    assert error.startswith(f"ds-minimodel: {tmp_path}/scores.json: ") and words in error and error.count("\n") == 1


def test_a_report_named_twice_and_a_folder_for_the_picture_are_refused(script, tmp_path, monkeypatch, capsys):
    write_json(tmp_path / "scores.json", some_run().target_scores)
    for last, words in ((tmp_path / "curve.svg", "named twice"), (tmp_path, "name the file to write last")):
        monkeypatch.setattr("sys.argv", ["curve_picture.py", str(tmp_path), str(tmp_path), str(last)])
        assert script.main() == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize("mode", PALETTES)
def test_its_colours_show_on_both_grounds(script, mode):
    quiet, _, systems = script.COLORS[mode]
    ground = luminance({"light": "#ffffff", "dark": "#0d1117"}[mode])
    for color in (quiet, *systems):
        bright, dark = sorted((luminance(color), ground), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= ENOUGH, color


def test_the_pictures_of_the_pages_follow_the_readers_mode():
    for path in (ROOT / "docs/pictures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).find(f"{SVG}title") is not None
        assert "prefers-color-scheme: dark" in text and not re.search(r"<script|href=", text)
