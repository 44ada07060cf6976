"""ds_configs/: the paper's pretraining for a script of one's own is what the recipe says, and DeepSpeed takes it."""

from pathlib import Path

from ds_minimodel.recipe.deepspeed_file import read_deepspeed_file
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.training.run import Accounting, Execution, Optimizer, Run, Schedule
from ds_minimodel.training.zero.config import check_deepspeed

FOLDER = Path(__file__).parent.parent / "ds_configs"


def test_it_agrees_with_the_papers_recipe_on_eight_gpus():
    recipe = load_recipe("paper")
    section, engine = recipe.pretrain, recipe.engine
    run = Run(
        Schedule(section.steps, section.lr, section.warmup_steps),
        Execution(section.batch_size, engine.micro_batch_size, engine.zero_stage, "fp16"),
        Accounting(1),
        Optimizer(section.weight_decay, section.beta1, section.beta2, section.eps, section.clip),
        deepspeed=read_deepspeed_file(FOLDER / "paper.json").settings,
    )
    check_deepspeed(run, 8)


def test_the_hostfile_is_one_that_deepspeed_reads():
    from deepspeed.launcher.runner import fetch_hostfile

    assert fetch_hostfile(FOLDER / "hostfile.example") == {"worker-1": 8, "worker-2": 8}
