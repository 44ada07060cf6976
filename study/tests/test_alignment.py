"""study/alignment.py: its table, on a body and packs of a few steps."""

import json
import math
import shutil

import pytest

from ds_minimodel.cli.main import main
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.systems import SYSTEMS
from tests.docs import import_script
from tests.pipeline.conftest import make_world, ready_for_cpu  # noqa: F401

STEPS = ("tokenizer", "prepare", "pretrain", "adapt")


def give_ids(folder):
    """Give the topics ids; the second paragraph is the first once more, the last has no translation.

    Returns how many texts differ.
    """
    for language in ("en", "xx"):
        path = folder / f"topic.{language}.jsonl"
        rows = [json.loads(line) | {"id": str(number)} for number, line in enumerate(path.read_text().splitlines())]
        rows[1]["text"] = rows[0]["text"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[: None if language == "en" else -1]))
    return len({row["text"] for row in rows[:-1]})


def test_loss_and_translations_before_and_after_step_2(tmp_path, monkeypatch, capsys):
    recipe = make_world(tmp_path)
    overrides = ["systems=[bl_base]", "adapt.depth_schedule=[]"]
    for step in STEPS:
        with pytest.raises(SystemExit, match="0"):
            main([step, str(recipe), *overrides])
    capsys.readouterr()
    script, number = import_script("study/alignment.py"), give_ids(tmp_path)
    monkeypatch.setattr("sys.argv", ["alignment.py", str(recipe), *overrides])
    assert script.main() == 0
    _, _, row = capsys.readouterr().out.splitlines()
    name, language, loss, *percents = row.strip("| ").split(" | ")
    assert (name, language) == ("BL_BASE", "xx") and all(0 <= float(percent) <= 100 for percent in percents)
    assert abs(float(loss) - math.log(60)) < 1, "60 pieces, 8 steps of training"
    loaded, folder = load_recipe(recipe, overrides), tmp_path / "run"
    texts, originals = script.parallel_paragraphs(loaded, "xx")
    assert len(texts) == len({*texts}) == len({*originals}) == number
    (tmp_path / "topic.xx.jsonl").write_bytes((tmp_path / "topic.en.jsonl").read_bytes())
    shutil.rmtree(folder / "adapt/bl_base/xx/pack")
    shutil.copytree(folder / "pretrain/bl_base/pack", folder / "adapt/bl_base/xx/pack")
    assert script.percent_found(loaded, SYSTEMS["bl_base"], "xx")[1] == 100, "English finds itself"
