"""What is checked ahead where matplotlib is not installed."""

import importlib.util

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.recipe.schema import PaperRecipe
from ds_minimodel.steps.check import check_ahead
from ds_minimodel.steps.order import STEPS

CHOSEN = [STEPS[name] for name in ("adapt", "finetune", "evaluate", "report")]


@pytest.fixture
def recipe(tmp_path):
    files = {}
    for language in ("en", "de"):
        files[language] = str(tmp_path / f"{language}.txt")
        (tmp_path / f"{language}.txt").write_text("a b\n")
    (tmp_path / "topic.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    task = {"kind": "classification", "train": str(tmp_path / "topic.jsonl"), "test": {}}
    return {
        "workdir": str(tmp_path / "run"),
        "systems": ["bl_base"],
        "data": {"text": files},
        "languages": {"source": "en", "targets": ["de"]},
        "finetune": {"tasks": {"topic": task}},
    }


@pytest.fixture
def no_matplotlib(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))


def test_a_recipe_with_tasks_is_refused_without_matplotlib(recipe, no_matplotlib):
    with pytest.raises(UserError, match="the report needs matplotlib"):
        check_ahead(PaperRecipe.model_validate(recipe), CHOSEN, 1)


def test_packs_alone_are_made_without_matplotlib(recipe, no_matplotlib, capsys):
    assert check_ahead(PaperRecipe.model_validate(recipe | {"finetune": {}}), CHOSEN, 1) == [STEPS["adapt"]]
    assert "without a report" in capsys.readouterr().err


def test_packs_alone_have_a_report_of_costs_and_losses(recipe):
    assert check_ahead(PaperRecipe.model_validate(recipe | {"finetune": {}}), CHOSEN, 1) == [
        STEPS["adapt"],
        STEPS["report"],
    ]
