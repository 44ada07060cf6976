"""ds_configs/: the paper's pretraining for a script of one's own is what the recipe says, and DeepSpeed takes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ds_minimodel.recipe.deepspeed_file import read_deepspeed_file
from ds_minimodel.recipe.reading import load_recipe
from ds_minimodel.training.run import Accounting, Execution, Optimizer, Run, Schedule
from ds_minimodel.training.zero.config import check_deepspeed

FOLDER = Path(__file__).parent.parent / "ds_configs"
# Prints facts after two optimizer steps.
TRAIN = """
import json, sys
import deepspeed, torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False     # compiles for a minute
config = json.load(open(sys.argv[1]))
accumulation = config["gradient_accumulation_steps"] = 2           # of one rank; nothing else is changed
del config["train_batch_size"]
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(2 * accumulation):                                  # the warm-up's first step has rate 0
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
print(json.dumps([engine.zero_optimization_stage(), type(optimizer).__module__, engine.global_steps,
                  engine.get_lr()[0]]))
"""


def test_deepspeed_takes_the_papers():
    names = {"DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, FOLDER / "paper.json"],
        env={**os.environ, **names, "MASTER_PORT": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    stage, optimizer, steps, rate = json.loads(done.stdout.splitlines()[-1])
    assert (stage, optimizer, steps) == (1, "torch.optim.adamw", 2)  # DeepSpeed's own would be compiled first
    assert abs(rate - 7e-8) < 1e-12


def test_it_agrees_with_the_papers_recipe_on_eight_gpus():
    recipe = load_recipe("paper")
    section, engine = recipe.pretrain, recipe.engine
    run = Run(
        Schedule(section.steps, section.lr, section.warmup_steps),
        Execution(section.batch_size, engine.micro_batch_size, engine.zero_stage, "fp16"),
        Accounting(1, ()),
        Optimizer(section.weight_decay, section.beta1, section.beta2, section.eps, section.clip),
        deepspeed=read_deepspeed_file(FOLDER / "paper.json").settings,
    )
    check_deepspeed(run, 8)


def test_the_hostfile_is_one_that_deepspeed_reads():
    from deepspeed.launcher.runner import fetch_hostfile

    assert fetch_hostfile(FOLDER / "hostfile.example") == {"worker-1": 8, "worker-2": 8}
