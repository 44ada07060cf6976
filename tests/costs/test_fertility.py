"""The command that says what new pieces bring."""

import json
from itertools import pairwise

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.costs.fertility import OFTEN, fertility
from ds_minimodel.recipe.reading import load_recipe

from ..forks import run
from ..pipeline.conftest import make_world
from ..pipeline.test_extension import make_recipe


def test_more_pieces_make_a_byte_cheaper_and_the_best_are_frequent(tmp_path, monkeypatch):
    monkeypatch.setattr("ds_minimodel.costs.fertility.SIZES", (0, 4, 8, 16, 10**6))
    rows = fertility(load_recipe(make_recipe(tmp_path)))
    assert [row["new_pieces"] for row in rows] == [0, 4, 8, 16]
    for fewer, more in pairwise(rows):
        assert fewer["bytes_per_token"] < more["bytes_per_token"] and fewer["flops_per_byte"] > more["flops_per_byte"]
        assert fewer["rarest"] is None or fewer["rarest"] >= more["rarest"]
    (best,) = (row for row in rows if row["best"])
    assert best is [row for row in rows if not row["new_pieces"] or row["rarest"] >= OFTEN][-1]


def test_on_the_command_line(tmp_path):
    code, out, err = run("fertility", make_recipe(tmp_path), "--json")
    assert code == 0, err
    assert json.loads(out)["rows"][0]["new_pieces"] == 0


def test_a_recipe_without_a_base_is_refused(tmp_path):
    with pytest.raises(UserError, match="no base whose vocabulary new pieces would extend"):
        fertility(load_recipe(make_world(tmp_path)))
