"""DeepSpeed's JSON that a recipe names: what is taken, what is refused and why, and what of it decides results."""

import json
from pathlib import Path

import pytest

from ds_minimodel.cli.main import parse
from ds_minimodel.cli.steps import recipe_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.recipe.deepspeed_file import REFUSED, read_deepspeed_file
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import compared_settings

ROOT = Path(__file__).parents[2]
PAPER = str(ROOT / "recipes/paper.yaml")
FILE = {
    "train_batch_size": "auto",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "offload_optimizer": {"device": "cpu"}},
    "fp16": {"enabled": "auto", "initial_scale_power": 16},
    "comms_logger": {"enabled": True},
}


@pytest.fixture
def written(tmp_path):
    """written(settings): path of a file with them."""

    def write(settings):
        path = tmp_path / "ds.json"
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings, indent=1), encoding="utf-8")
        return path

    return write


def test_what_is_given_is_kept_and_auto_is_as_good_as_absent(written):
    assert read_deepspeed_file(written(FILE)).given() == {
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000, "offload_optimizer": {"device": "cpu"}},
        "fp16": {"initial_scale_power": 16},
        "comms_logger": {"enabled": True},
    }


def test_what_decides_is_recorded_and_compared_and_nothing_else(written):
    plain, with_file = load_recipe(PAPER), load_recipe(PAPER, [f"engine.deepspeed={written(FILE)}"])
    assert plain.engine.recorded() == {"precision": "auto"}
    assert with_file.engine.recorded() == {"precision": "auto", "deepspeed": {"fp16": {"initial_scale_power": 16}}}
    before, after = (compared_settings(recipe.model_dump(mode="json")) for recipe in (plain, with_file))
    assert {key for key in after if after[key] != before.get(key)} == {"engine.deepspeed.fp16.initial_scale_power"}
    only_told = written({key: FILE[key] for key in ("zero_optimization", "comms_logger")})
    assert load_recipe(PAPER, [f"engine.deepspeed={only_told}"]).engine.recorded() == plain.engine.recorded()


def test_deepspeeds_own_option_names_the_file(written):
    options = parse(["pretrain", PAPER, "--deepspeed_config", str(written(FILE))])
    recipe, overrides = recipe_of(options)
    assert recipe.engine.deepspeed.given()["comms_logger"] == {"enabled": True}
    assert len(overrides) == 1 and load_recipe(PAPER, overrides) == recipe  # what ranks are started with


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"zero_optimization": {"stag": 2}}, "ds.json:3: zero_optimization.stag: unknown key; did you mean stage?"),
        ({"wall_clock_breakdown": 1}, "ds.json:2: wall_clock_breakdown: Input should be a valid boolean"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "ds.json:4: zero_optimization.offload_opti"),
        ('{"comms_logger": {},, }', "ds.json:1: not valid JSON"),
        ('{"fp16": {}, "fp16": {}}', "ds.json:1: not valid JSON"),
        ("[1]", "ds.json: a DeepSpeed JSON is an object of settings"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(written, settings, message):
    with pytest.raises(UserError) as refusal:
        load_recipe(PAPER, [f"engine.deepspeed={written(settings)}"])
    assert message in str(refusal.value)


@pytest.mark.parametrize("key", REFUSED)
def test_a_known_key_that_is_not_taken_is_refused_with_the_reason(written, key):
    *sections, last = key.split(".")
    settings = {last: True}
    for section in reversed(sections):
        settings = {section: settings}
    with pytest.raises(UserError) as refusal:
        read_deepspeed_file(written(settings))
    assert f"ds.json:{2 + len(sections)}: {key} is not taken: {REFUSED[key]}" in str(refusal.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"engine.deepspeed: .*none.json: No such file"):
        load_recipe(PAPER, [f"engine.deepspeed={tmp_path}/none.json"])
    with pytest.raises(UserError, match="engine.deepspeed=7: Input should be the path"):
        load_recipe(PAPER, ["engine.deepspeed=7"])


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_files_are_taken(path):
    assert read_deepspeed_file(path).given()
