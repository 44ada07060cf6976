"""Step 2 from each initialisation, and recipes whose vectors are missing or do not fit."""

import json

import pytest

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.first_pack import check_vectors
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import is_pending

from ..forks import done
from .conftest import copy_of, make_world

OFA = "adapt.initialisation=ofa"


def test_step_2_records_it_and_trains_on(world, tmp_path):
    recipe = copy_of(world, tmp_path)
    arguments = ("adapt", recipe, "systems=[bl_small]", "adapt.initialisation=random")
    with pytest.raises(UserError, match="made from another recipe"):
        is_pending(STEPS["adapt"], load_recipe(*arguments[1:2], arguments[2:]))
    done(*arguments, "--rebuild")
    folder = tmp_path / "copy/run/adapt/bl_small/xx"
    first, last = folder / "snapshots/step-00000000", folder / "pack"
    assert all(read_manifest(pack)["initialisation"] == "random" for pack in (first, last))
    before, after = map(load_adaptation, (first, last))
    assert (
        not before.embeddings["tokens"][5].equal(after.embeddings["tokens"][5]) and not after.update
    )
    record = json.loads((folder.parent / "xx.job.json").read_text())
    assert record["inputs"]["adapt"]["initialisation"] == "random"


@pytest.mark.parametrize(
    "overrides, words",
    [
        (
            ["adapt.initialisation=ofa"],
            "adapt.word_vectors: no file for en; ofa reads one for the source and every",
        ),
        (["adapt.word_vectors={en: en.vec}"], "adapt.word_vectors: nothing reads that of en; ofa"),
        ([OFA, "adapt.word_vectors={en: nowhere.vec, xx: xx.vec}"], "nowhere.vec: no such file"),
    ],
)
def test_recipes_that_do_not_fit(tmp_path, overrides, words):
    with pytest.raises(UserError) as error:
        check_vectors(load_recipe(make_world(tmp_path), overrides).adapt)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_vectors_that_do_not_fit(tmp_path):
    (tmp_path / "en.vec").write_text("1 3\nthe 1 2 3\n")
    (tmp_path / "xx.vec").write_text("1 2\nthe 1 2\n")
    vectors = f"adapt.word_vectors={{en: {tmp_path}/en.vec, xx: {tmp_path}/xx.vec}}"
    with pytest.raises(UserError, match="en.vec has 3 dimensions, .*xx.vec has 2 dimensions"):
        check_vectors(load_recipe(make_world(tmp_path), [OFA, vectors]).adapt)
