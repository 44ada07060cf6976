"""DeepSpeed's JSON that a recipe names: what is taken, what is refused and why, and what of it
decides results.
"""

import json
from pathlib import Path

import pytest

from ds_minimodel.cli.main import parse
from ds_minimodel.cli.steps import recipe_of
from ds_minimodel.config.reading import load_recipe
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.training.zero.deepspeed_file import read_deepspeed_file
from tests.helpers.refusals import refuses

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAPER = "paper"
FILE = {
    "train_batch_size": "auto",
    "zero_optimization": {
        "stage": "auto",
        "reduce_bucket_size": 5e8,
        "offload_optimizer": {"device": "cpu"},
    },
    "fp16": {"enabled": "auto", "initial_scale_power": 16},
    "comms_logger": {"enabled": True},
}


@pytest.fixture
def written(tmp_path):
    """written(settings): path of a file with them."""

    def write(settings):
        path = tmp_path / "ds.json"
        path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
        return path

    return write


def test_auto_is_as_good_as_absent(written):
    found = read_deepspeed_file(written(FILE)).settings
    zero = {key: value for key, value in FILE["zero_optimization"].items() if key != "stage"}
    assert found == {
        "zero_optimization": zero,
        "comms_logger": {"enabled": True},
        "fp16": {"initial_scale_power": 16},
    }


def test_what_may_decide_is_recorded_and_nothing_else(written):
    plain = load_recipe(PAPER)
    with_file = load_recipe(PAPER, [f"engine.deepspeed={written(FILE)}"])
    assert plain.engine.recorded() == {"precision": "auto", "deepspeed": {}}
    assert with_file.engine.recorded() == {
        "precision": "auto",
        "deepspeed": {"fp16": {"initial_scale_power": 16}},
    }
    only_told = written({key: FILE[key] for key in ("zero_optimization", "comms_logger")})
    assert (
        load_recipe(PAPER, [f"engine.deepspeed={only_told}"]).engine.recorded()
        == plain.engine.recorded()
    )


def test_deepspeeds_own_option_names_the_file(written):
    options = parse(["pretrain", PAPER, "--deepspeed_config", str(written(FILE))])
    recipe, overrides = recipe_of(options)
    assert recipe.engine.deepspeed.settings["comms_logger"] == {"enabled": True}
    assert len(overrides) == 1
    assert load_recipe(PAPER, overrides) == recipe  # what ranks are started with


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {
                "zero_optimization": {
                    "offload_param": {"device": "cpu"},
                    "zero_hpz_partition_size": 2,
                }
            },
            "ds.json: not offered: zero_optimization.offload_param, "
            "zero_optimization.zero_hpz_partition_size; remove",
        ),
        (
            {"zero_optimization": {"load_from_fp32_weights": False}},
            "not offered: zero_optimization.load_from_fp32",
        ),
        (
            {"zero_optimization": {"stage": 1}},
            "ds.json: the recipe says: zero_optimization.stage; remove these keys",
        ),
        (
            {
                "train_batch_size": 16,
                "optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-6}},
            },
            "ds.json: the recipe says: train_batch_size, optimizer.type, optimizer.params.eps; "
            "remove",
        ),
        ({"data_efficiency": {"enabled": True}}, "not offered: data_efficiency; remove"),
        (
            {"activation_checkpointing": {"partition_activations": True}},
            "not offered: activation_checkpointing; rem",
        ),
        ('{"comms_logger": {},, }', "ds.json: not a readable JSON file (Expecting property name"),
        (
            "[1]",
            "ds.json: Input should be a valid dictionary; a DeepSpeed JSON is an object of "
            "settings",
        ),
    ],
)
def test_what_is_not_offered_is_refused_with_the_recipe(written, settings, message):
    with refuses() as refusal:
        load_recipe(PAPER, [f"engine.deepspeed={written(settings)}"])
    assert message in str(refusal.value)


def test_what_is_off_may_stand_there(written):
    settings = {"zero_quantized_weights": False, "sub_group_size": 1e9}
    file = {
        "data_efficiency": {"enabled": False, "seed": 1},
        "fp16": {"loss_scale": 0},
        "zero_optimization": settings,
    }
    file |= {
        "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None}
    }
    assert read_deepspeed_file(written(file)).settings == file


def checked(settings, *overrides):
    """Check a recipe of one system without tasks against a file, on eight ranks."""
    recipe = load_recipe(
        PAPER,
        [f"engine.deepspeed={settings}", "systems=[bl_base]", "finetune.tasks={}", *overrides],
    )
    check_deepspeed_file(recipe, 8)


def test_what_deepspeed_finds_wrong_is_one_line(written):
    with refuses("ds.json: DeepSpeed does not take it: .*stag: Extra inputs are not permitted"):
        checked(written({"zero_optimization": {"stag": 2}}))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem
)
def test_our_own_files_are_taken(path):
    stage = "2" if path.stem == "offload_optimizer" else "1"
    checked(path, f"engine.zero_stage={stage}")


def test_what_names_no_file():
    with refuses("engine.deepspeed=7: Input should be the path"):
        load_recipe(PAPER, ["engine.deepspeed=7"])
