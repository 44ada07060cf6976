"""Step 2 from another initialisation."""

import json

import pytest

from ds_minimodel.artifacts.adaptation import load_adaptation
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_manifest
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.registry import STEPS
from ds_minimodel.pipeline.run import is_pending

from ..forks import done
from .conftest import copy_of


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
