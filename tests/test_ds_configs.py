"""The DeepSpeed JSON for hand-started training: accepted by DeepSpeed, and what the engine itself would write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.run import Accounting, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.engine.zero.config import deepspeed_config

FOLDER = Path(__file__).parent.parent / "ds_configs"
STAGES, PRECISIONS = (0, 1, 2, 3), ("fp32", "bf16", "fp16")

# One process for all files: starting DeepSpeed takes seconds. Prints {path: facts after two optimizer steps}.
TRAIN_WITH_EACH = """
import json, sys
import deepspeed, torch
from deepspeed.accelerator import get_accelerator

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False     # compiles for a minute
type(get_accelerator()).is_fp16_supported = lambda self: True      # the CPU computes it, DeepSpeed says no
facts = {}
for path in sys.argv[1:]:
    config = json.load(open(path))
    accumulation = config["gradient_accumulation_steps"] = 2       # nothing else is changed
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(2 * accumulation):                              # the warm-up's first step has rate 0
        x = torch.ones(1, 4, dtype=engine.module.weight.dtype)
        loss = engine(x).float().sum()
        engine.backward(loss)
        engine.step()
    torch_optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    facts[path] = [engine.zero_optimization_stage(), str(x.dtype), type(torch_optimizer).__module__,
                   engine.global_steps, engine.get_lr()[0]]
    engine.destroy()
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts_after_two_steps():
    paths = [str(path) for path in sorted(FOLDER.glob("*.json"))]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_WITH_EACH, *paths], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {Path(path).stem: facts for path, facts in json.loads(done.stdout.splitlines()[-1]).items()}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_deepspeed_takes_it(facts_after_two_steps, stage, precision):
    dtype = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
    optimizer = "torch.optim.adamw"  # DeepSpeed's own would be compiled first
    assert facts_after_two_steps[f"zero{stage}_{precision}"] == [stage, dtype, optimizer, 2, pytest.approx(7e-8)]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_is_what_the_engine_writes(stage, precision):
    """But for the optimizer and the schedule, which the engine makes itself."""
    config = json.loads((FOLDER / f"zero{stage}_{precision}.json").read_text())
    run = Run(Schedule(1, 1.0), Execution(2048, 32, stage, precision), Accounting(1, ()))
    own = {"optimizer": config["optimizer"], "scheduler": config["scheduler"]}
    assert (
        config
        == {key: value for key, value in deepspeed_config(run, world_size=8).items() if key != "steps_per_print"} | own
    )


def test_the_hostfile_is_one_that_deepspeed_reads():
    from deepspeed.launcher.runner import fetch_hostfile

    assert fetch_hostfile(FOLDER / "hostfile.example") == {"worker-1": 8, "worker-2": 8}
