"""The command that says what new tokens bring."""

import json
from itertools import pairwise

import pytest

from ds_minimodel.artifacts.base import refer
from ds_minimodel.common.vocabulary import MIN_OCCURRENCES
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.fertility import fertility
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import run_step_here
from tests.helpers.foreign_models import make_bert
from tests.helpers.refusals import refuses
from tests.pipeline.extension_world import make_recipe

from ..forks import run
from .conftest import make_world

pytestmark = pytest.mark.slow


def rows_of(recipe):
    run_step_here(STEPS["corpus"], recipe)
    return fertility(recipe)


def test_more_pieces_make_a_byte_cheaper_and_the_best_are_frequent(tmp_path, monkeypatch):
    monkeypatch.setattr("ds_minimodel.pipeline.fertility.SIZES", (0, 4, 8, 16, 10**6))
    rows = rows_of(load_recipe(make_recipe(tmp_path)))
    assert [row["new_pieces"] for row in rows] == [0, 4, 8, 16, 24], "and the recipe's own number"
    for fewer, more in pairwise(rows):
        assert fewer["bytes_per_token"] < more["bytes_per_token"]
        assert fewer["flops_per_byte"] > more["flops_per_byte"]
        assert fewer["rarest"] is None or fewer["rarest"] >= more["rarest"]
    (best,) = (row for row in rows if row["best"])
    assert (
        best
        is [row for row in rows if not row["new_pieces"] or row["rarest"] >= MIN_OCCURRENCES][-1]
    )
    code, out, err = run(f"fertility {tmp_path}/recipe.yaml --json")
    assert code == 0, err
    assert json.loads(out)["rows"][0] == rows[0], err


def test_a_text_of_unknown_letters_is_not_taken_for_a_cheap_one(tmp_path):
    """A BERT that has none of them makes one token of a word."""
    recipe = make_recipe(tmp_path)
    text = tmp_path / "xx.txt"
    text.write_text(
        "".join(chr(ord(sign) + 0x350) if sign.isalpha() else sign for sign in text.read_text())
    )
    refer(make_bert(tmp_path / "en.txt", tmp_path / "bert"), tmp_path / "of-bert", "en")
    recipe.write_text(recipe.read_text().replace("/base", "/of-bert").split("finetune:")[0])
    unknown, *others = rows_of(load_recipe(recipe))
    assert unknown["unknown"] > 0.95
    assert unknown["bytes_per_token"] < 1
    assert not unknown["best"]
    assert unknown["flops_per_byte"] > others[0]["flops_per_byte"]
    assert all(row["unknown"] < 0.05 for row in others if row["best"])


def test_a_recipe_without_a_base_is_refused(tmp_path):
    with refuses("no base whose vocabulary new tokens would extend"):
        fertility(load_recipe(make_world(tmp_path)))
