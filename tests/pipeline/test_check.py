"""What is checked ahead where matplotlib is not installed."""

import sys

import pytest

from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.check import check_ahead
from ds_minimodel.pipeline.registry import STEPS
from tests.helpers.refusals import refuses

from .conftest import make_world

pytestmark = pytest.mark.slow


def check(folder, *overrides):
    """Steps that are to be taken of those after pretraining."""
    chosen = [STEPS[name] for name in ("adapt", "finetune", "evaluate", "report")]
    return [
        step.name for step in check_ahead(load_recipe(make_world(folder), overrides), chosen, 1)
    ]


@pytest.fixture
def no_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_a_recipe_with_tasks_is_refused_without_matplotlib(tmp_path, no_matplotlib):
    with refuses(r"matplotlib is not installed; pip install .ds_minimodel\[report\]"):
        check(tmp_path)


def test_packs_alone_are_made_without_matplotlib(tmp_path, no_matplotlib, capsys):
    assert check(tmp_path, "finetune.tasks={}") == ["adapt"]
    assert "without a report" in capsys.readouterr().err


def test_packs_alone_have_a_report_of_costs_and_losses(tmp_path):
    assert check(tmp_path, "finetune.tasks={}") == ["adapt", "report"]
