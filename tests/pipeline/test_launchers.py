"""Two ranks under every launcher of docs/launch.md that starts them on one host train what one process does."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.torch import load_file

from ..docs import ROOT, commands
from ..forks import free_port, run
from .conftest import make_world

LAUNCHERS = [
    command
    for command in commands("docs/launch.md")
    if "pretrain RECIPE" in command and not re.search("HOSTS|--deepspeed_config|--nnodes", command)
]
BODIES = ("bl_base", "minijoint", "multijoint")


@pytest.mark.parametrize("command, body", [*zip(LAUNCHERS, BODIES, strict=True)])
def test_two_ranks_train_what_one_does(world, tmp_path, command, body):
    """Under every launcher of docs/launch.md, a body each; and step 2 at ZeRO 2."""
    recipe = make_world(tmp_path)
    for part in ("tokenizer", "tokens"):
        shutil.copytree(world.parent / "run" / part, tmp_path / "run" / part)
    port = ["--master_port", str(free_port())]
    program = {
        "ds-minimodel": [sys.executable, "-m", "ds_minimodel"],
        "RECIPE": [str(recipe)],
        "8": ["2"],
        "deepspeed": [sys.executable, "-m", "deepspeed.launcher.runner", *port],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", *port],
    }
    line = [part for word in command.split() for part in program.get(word, [word])]
    own = [f"systems=[{body}]", "adapt.depth_schedule=[]"]
    done = subprocess.run([*line, *own], capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    files = [f"pretrain/{body}/body/model.safetensors", f"pretrain/{body}/pack/embeddings.safetensors"]
    if body == "minijoint":
        code, _, err = run("adapt", recipe, *own, "--ranks", "2", "--zero", "2")
        assert code == 0, err
        files.append("adapt/minijoint/xx/pack/embeddings.safetensors")
    for file in files:
        one, two = load_file(world.parent / "run" / file), load_file(tmp_path / "run" / file)
        for name in one:
            np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), atol=2e-4, err_msg=name)
