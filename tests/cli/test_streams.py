"""What a command is started with: streams that take nothing, launchers' variables."""

import os
import subprocess
import sys

import pytest

from tests.helpers.refusals import refuses

FLOPS = [sys.executable, "-m", "ds_minimodel", "flops", "recipe.yaml"]
RECIPE = """\
workdir: run
systems: [bl_base]
languages: {source: en, targets: [de]}
data: {text: {en: ö.txt, de: de.txt}}
"""


@pytest.fixture
def shell(tmp_path):
    """shell(COMMAND, VARIABLE=…): what a command line in a folder with recipe.yaml ends in; $FLOPS
    is flops of it.
    """
    (tmp_path / "recipe.yaml").write_text(RECIPE)

    def shell(command, **environment):
        env = {**os.environ, "FLOPS": " ".join(FLOPS), **environment}
        options = dict(capture_output=True, text=True, encoding="utf-8")
        return subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, **options)

    return shell


def test_an_answer_without_errors_or_input(shell):
    """The file that a closed stream's number would go to is not written into."""
    done = shell("$FLOPS >answer 2>&- <&- && $FLOPS | diff answer -")
    assert done.returncode == 0
    assert not done.stdout


@pytest.mark.parametrize("streams", [">/dev/full", "--help >/dev/full"])
def test_an_answer_that_cannot_be_printed_is_a_mistake(shell, streams):
    done = shell(f"$FLOPS {streams}")
    assert done.returncode == 2
    assert done.stderr == "ds-minimodel: No space left on device; fix this and run again\n"


def test_a_rank_that_waits_for_others_says_so():
    """RANK and WORLD_SIZE may be left over from another program."""
    code = "from ds_minimodel.training import world; world.PATIENCE = 0.1; world.join_ranks(1)"
    ranks = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29577",
    }
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **ranks}, stderr=subprocess.PIPE
    ) as process:
        line = next(line for line in process.stderr if line.startswith(b"ds-minimodel: "))
        process.kill()
    assert b"RANK=0 of WORLD_SIZE=2 still waits for the other ranks at 127.0.0.1:29577" in line


def test_ranks_that_cannot_meet(monkeypatch):
    from ds_minimodel.launch.process import check_rendezvous, rank_of_environment

    for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with refuses("a launcher has set no WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"):
        check_rendezvous()
    monkeypatch.setenv("RANK", "")
    with refuses("RANK=: no number, as a launcher would set; unset RANK"):
        rank_of_environment()
