"""DeepSpeed's JSON that a recipe names: what is taken, what is refused and why, and what of it decides results."""

import json
from pathlib import Path

import pytest

from ds_minimodel.cli.main import parse
from ds_minimodel.cli.steps import recipe_of
from ds_minimodel.common.errors import UserError
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.recipe.deepspeed_file import read_deepspeed_file
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.recipe.schema import compared_settings

ROOT = Path(__file__).parents[2]
PAPER = "paper"
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
        ({"zero_optimization": {"stag": 2}}, "not taken: zero_optimization.stag (line 3; did you mean stage?); "),
        ({"wall_clock_breakdown": 1}, "wall_clock_breakdown (line 2: Input should be a valid boolean"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "offload_optimizer.device (line 4: Input"),
        ({"fp16": {"loss_scale": 128}}, "fp16.loss_scale (line 3: Input should be 0)"),
        ({"wandb": {"enabled": True}}, 'wandb (line 2: Input should have "enabled": false)'),
        ('{"comms_logger": {},, }', "ds.json:1: not valid JSON"),
        ("[1]", "ds.json: a DeepSpeed JSON is an object of settings"),
        ('{"fp16": {}, "fp16": {}}', "ds.json:1: not valid JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(written, settings, message):
    with pytest.raises(UserError) as refusal:
        load_recipe(PAPER, [f"engine.deepspeed={written(settings)}"])
    assert message in str(refusal.value)


def test_all_keys_that_are_not_taken_are_named_at_once(written):
    settings = {"compile": {}, "fp16": {"loss_scale": 8}, "zero_optimization": {"stage": 2, "zenflow": {}}}
    with pytest.raises(UserError) as refusal:
        read_deepspeed_file(written(settings))
    line = str(refusal.value)
    assert "fp16.loss_scale (line 4: Input should be 0), zero_optimization.zenflow (line 8), compile (line 2); " in line
    with pytest.raises(UserError, match=r"unknown19 \(line 21\) and 5 more; the recipe, the partition"):
        read_deepspeed_file(written({f"unknown{number}": 1 for number in range(25)}))


AUTO = "auto"
CPU = {"device": "cpu", "pin_memory": True}
LOSS_SCALE = {
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "initial_scale_power": 16,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
BATCHES = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), AUTO
)
ADAMW = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)}
WARM_UP = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), AUTO)
PRINTED = {"steps_per_print": 2000, "wall_clock_breakdown": False}
STAGE_2 = {
    "stage": 2,
    "offload_optimizer": CPU,
    "allgather_partitions": True,
    "allgather_bucket_size": 2e8,
    "overlap_comm": True,
    "reduce_scatter": True,
    "reduce_bucket_size": 2e8,
    "contiguous_gradients": True,
}
STAGE_3 = {
    "stage": 3,
    "offload_optimizer": CPU,
    "offload_param": CPU,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 1e9,
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": True,
}
OF_TRAINER = {**BATCHES, **PRINTED, "optimizer": ADAMW, "bf16": {"enabled": AUTO}}
# The keys and values of files that people start from: those of Hugging Face's pages on DeepSpeed and of its Trainer's
# tests, and the examples of DeepSpeed's own page on its JSON.
PUBLISHED = {
    "zero2": {
        **OF_TRAINER,
        "fp16": {"enabled": AUTO, **LOSS_SCALE},
        "scheduler": {"type": "WarmupDecayLR", "params": {**WARM_UP, "total_num_steps": AUTO}},
        "zero_optimization": STAGE_2,
    },
    "zero3": {
        **OF_TRAINER,
        "fp16": {"enabled": AUTO, **LOSS_SCALE},
        "scheduler": {"type": "WarmupDecayLR", "params": {**WARM_UP, "last_batch_iteration": -1}},
        "zero_optimization": STAGE_3,
    },
    "deepspeeds_page": {
        "fp16": {
            "enabled": True,
            "auto_cast": False,
            "consecutive_hysteresis": False,
            "fp16_master_weights_and_grads": False,
            **LOSS_SCALE,
        },
        "optimizer": {"type": "Adam", "params": {"lr": 7e-4, "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.01}},
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "dump_state": False,
        "activation_checkpointing": {"partition_activations": False, "number_checkpoints": None, "profile": False},
        "flops_profiler": {
            "enabled": False,
            "profile_step": 1,
            "module_depth": -1,
            "top_modules": 1,
            "output_file": None,
        },
        "tensorboard": {"enabled": False, "output_path": "output/ds_logs/", "job_name": "train"},
        "csv_monitor": {"enabled": False},
        "wandb": {"enabled": False, "group": "one"},
        "zero_optimization": {**STAGE_2, "cpu_offload": False, "round_robin_gradients": False},
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_taken(written, name):
    settings = PUBLISHED[name]
    zero = settings["zero_optimization"]
    overrides = [f"engine.zero_stage={zero['stage']}", "engine.precision=fp16"]
    overrides += ["systems=[bl_base]", "finetune.tasks={}"]  # which have another rate
    recipe = load_recipe(PAPER, [f"engine.deepspeed={written(settings)}", *overrides])
    check_deepspeed_file(recipe, 8)
    held = "offload_optimizer offload_param overlap_comm reduce_bucket_size allgather_bucket_size stage".split()
    given = recipe.engine.deepspeed.given()
    assert given["zero_optimization"] == {key: value for key, value in zero.items() if key in held and value != AUTO}
    assert not given.keys() & {"tensorboard", "wandb", "csv_monitor", "dump_state", "activation_checkpointing"}
    assert "loss_scale" not in given.get("fp16", {})


def test_a_rate_that_stays_after_the_warm_up_is_not_the_recipes(written):
    """Unless there is nothing after it."""
    settings = {"scheduler": {"type": "WarmupLR", "params": WARM_UP}}
    overrides = [f"engine.deepspeed={written(settings)}", "systems=[bl_base]"]
    with pytest.raises(UserError) as refusal:
        check_deepspeed_file(load_recipe(PAPER, overrides), 8)
    assert 'scheduler.type is "WarmupLR" in the file, but the schedule, which falls to 0' in str(refusal.value)
    ends = [f"{section}.{key}" for section in ("pretrain", "adapt") for key in ("steps=100", "warmup_steps=99")]
    recipe = load_recipe(PAPER, [*overrides, *ends, "finetune.tasks={}"])
    check_deepspeed_file(recipe, 8)


def test_all_that_disagrees_is_named_with_its_steps(written):
    settings = {"zero_optimization": {"stage": 3}, "optimizer": {"params": {"lr": 7e-4, "amsgrad": True}}}
    recipe = load_recipe(PAPER, [f"engine.deepspeed={written(settings)}", "systems=[minipost]", "adapt.lr=0.001"])
    with pytest.raises(UserError) as refusal:
        check_deepspeed_file(recipe, 8)
    line = str(refusal.value)
    tasks = ", ".join(f"finetune {task}" for task in recipe.finetune.finetuned_tasks)
    steps = f"(pretrain, build-mini, adapt, {tasks})"
    assert f"zero_optimization.stage is 3 in the file, but engine.zero_stage 1 in the recipe {steps}; " in line
    assert "optimizer.params.lr is 0.0007 in the file, but lr 0.001 in the recipe (adapt); " in line
    assert f"optimizer.params.amsgrad true: the recipe has no such setting {steps}; " in line and "\n" not in line


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_files_are_taken(path):
    assert read_deepspeed_file(path).given()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"engine.deepspeed: .*none.json: No such file"):
        load_recipe(PAPER, [f"engine.deepspeed={tmp_path}/none.json"])
    with pytest.raises(UserError, match="engine.deepspeed=7: Input should be the path"):
        load_recipe(PAPER, ["engine.deepspeed=7"])
