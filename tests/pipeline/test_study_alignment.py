"""The two tables of scripts/study_alignment.py, on the pipeline in miniature."""

import json
import math
import shutil

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.recipe.jobs import Layout
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.systems import SYSTEMS

from ..docs import import_script
from .conftest import copy_of


def with_ids(recipe):
    """Give the topics ids; the second paragraph is the first once more, and the last has no translation."""
    for language in ("en", "xx"):
        path = recipe.parent / f"topic.{language}.jsonl"
        rows = [json.loads(line) | {"id": str(number)} for number, line in enumerate(path.read_text().splitlines())]
        rows[1]["text"] = rows[0]["text"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[: None if language == "en" else -1]))
    return len({row["text"] for row in rows[:-1]})


def rows_of(table):
    return [line.removesuffix(" |").split(" | ") for line in table.splitlines() if line.startswith("| run |")]


def test_loss_and_translations_of_every_system(world, tmp_path, capsys, monkeypatch):
    recipe = copy_of(world, tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(recipe)])  # its recipe names the files of the copy
    script, number, run = import_script("scripts/study_alignment.py"), with_ids(recipe), recipe.parent / "run"
    page = tmp_path / "new/alignment.md"
    monkeypatch.setattr("sys.argv", ["study_alignment.py", str(run), str(page)])
    assert script.main() == 0
    losses, translations = (
        {cells[1]: cells[2] for cells in rows_of(part)} for part in page.read_text().split("**Translations")
    )
    assert losses.pop("system") == translations.pop("system") == "xx"
    assert list(losses) == list(translations) == ["BL_BASE", "BL_SMALL", "MiniJoint", "MiniPost", "MultiJoint"]
    assert all(abs(float(loss) - math.log(60)) < 1 for loss in losses.values()), "60 pieces, 8 steps of training"
    assert all(0 <= float(percent) <= 100 for row in translations.values() for percent in row.split(" → "))
    loaded = load_recipe(recipe)
    texts, originals = script.parallel_paragraphs(loaded, "xx")
    assert len(texts) == len({*texts}) == len({*originals}) == number
    (recipe.parent / "topic.xx.jsonl").write_bytes((recipe.parent / "topic.en.jsonl").read_bytes())
    shutil.rmtree(run / "adapt/bl_base/xx/pack")
    shutil.copytree(run / "pretrain/bl_base/pack", run / "adapt/bl_base/xx/pack")
    assert script.percent_found(loaded, Layout(run), SYSTEMS["bl_base"], "xx")[1] == 100, "English finds itself"
    (recipe.parent / "topic.xx.jsonl").write_text('{"text": "a", "label": "sea"}\n')
    assert script.main() == 2 and "a record without id or text" in capsys.readouterr().err
    (recipe.parent / "topic.xx.jsonl").write_text('{"id": "none", "text": "a", "label": "sea"}\n')
    assert script.main() == 2 and "nothing in it translates" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["study_alignment.py", str(run), str(run)])
    assert script.main() == 2 and "name the file to write last" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["study_alignment.py", str(tmp_path / "none"), str(page)])
    assert script.main() == 2 and "no finished run" in capsys.readouterr().err
