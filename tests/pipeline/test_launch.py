"""Ranks by --ranks: exit codes and signals come through, nobody is waited for."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from ds_minimodel.common.files import read_json_lines
from ds_minimodel.launch import hosts as launch
from ds_minimodel.training.checkpoints.storage import step_of
from tests.helpers.refusals import refuses

from .. import forks
from ..docs import ROOT
from .conftest import make_world, prepare

pytestmark = pytest.mark.slow

LONG = "pretrain.steps=2000", "checkpoint.every=1000"  # enough to be disturbed


def start(recipe, *overrides, ranks=2):
    return forks.start("pretrain", recipe, *LONG, *overrides, "--ranks", ranks)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe whose text is tokenised."""
    return prepare(make_world(tmp_path_factory.mktemp("launch")))


def run_of(recipe, system):
    return recipe.parent / "run/pretrain" / system / "run"


def train(recipe, system, *overrides, **options):
    """(process, its ranks) of a run of one system, new or going on, once it has taken a step."""
    metrics = run_of(recipe, system) / "metrics.jsonl"
    before = len(read_json_lines(metrics))
    process = start(recipe, f"systems=[{system}]", *overrides, **options)
    deadline = time.monotonic() + 120
    while len(read_json_lines(metrics)) <= before and time.monotonic() < deadline:
        if process.poll() is not None:
            break
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1]
    children = psutil.Process(process.pid).children(recursive=True)
    leaves = [child for child in children if not child.children()]
    return process, [leaf for leaf in leaves if "pretrain" in leaf.cmdline()]


def said_by(process, timeout=90):
    return process.communicate(timeout=timeout)[1]


def is_saved(run):
    return step_of((run / "checkpoints/latest").read_text()) > 0


def test_a_signal_reaches_the_ranks_which_save(recipe):
    """SIGTERM; SIGINT of one process is in tests/pipeline/test_pipeline.py."""
    process, ranks = train(recipe, "bl_base")
    process.send_signal(signal.SIGTERM)
    errors = said_by(process)
    assert process.returncode == 75, errors
    assert errors.count("stopped after step") == errors.count("stopping after this step") == 1
    assert "Traceback" not in errors
    assert is_saved(run_of(recipe, "bl_base"))
    assert len(ranks) == 2
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_ends_changes_nothing(number):
    signals = f"import atexit, os; atexit.register(os.kill, os.getpid(), {int(number)})"
    command = f"{signals}; from ds_minimodel.cli.main import main; main()"
    program = [sys.executable, "-c", command, "recipes"]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "quickstart" in done.stdout


@pytest.mark.long
def test_ranks_save_and_end_when_who_started_them_is_killed(recipe):
    process, ranks = train(recipe, "minijoint", ranks=1)
    process.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(ranks, timeout=60)[1] == []
    assert "stopped after step" in said_by(process)
    assert is_saved(run_of(recipe, "minijoint"))


@pytest.mark.long
def test_the_others_end_when_a_rank_is_killed(recipe):
    process, ranks = train(recipe, "minijoint")
    ranks[1].kill()
    errors = said_by(process)
    assert "another rank is gone; the same command resumes from the last checkpoint" in errors
    assert not any(rank.is_running() for rank in ranks)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "was ended by SIGKILL; the same command resumes" in errors


@pytest.mark.long
def test_a_signal_whose_save_fails_is_no_success(recipe):
    process, _ = train(recipe, "minijoint", ranks=1)
    checkpoints = run_of(recipe, "minijoint") / "checkpoints"
    shutil.rmtree(checkpoints, ignore_errors=True)  # an earlier test's
    checkpoints.write_text("in the way")
    process.send_signal(signal.SIGTERM)
    errors = said_by(process)
    assert process.returncode == 1, errors
    assert "checkpoints: File exists; fix this and run again" in errors
    assert "Traceback" not in errors
    assert "not all ranks have saved; the same command resumes" in errors


@pytest.mark.long
def test_a_mistake_that_the_ranks_find_is_a_users_mistake(recipe):
    process = start(recipe, "systems=[bl_small]", "pretrain.batch_size=3")
    (said,) = (line for line in said_by(process).splitlines() if not line.startswith("job "))
    assert process.returncode == 2
    assert said.startswith("ds-minimodel: batch_size 3 cannot be divided among 2 ranks")


@pytest.fixture
def hostfile(tmp_path):
    """hostfile(text): the path of a file of hosts."""

    def write(text):
        (tmp_path / "hosts").write_text(text)
        return str(tmp_path / "hosts")

    return write


def test_ranks_on_hosts_are_counted(hostfile):
    path = hostfile("# ours\nworker-1 slots=8\n\nworker-2   slots=4  # the old one\n")
    assert launch.ranks_on_hosts(path, None) == 12
    assert launch.ranks_on_hosts(path, 2) == 4
    assert launch.ranks_on_hosts(path, None, ["--include", "worker-1:0,1@worker-2"]) == 6
    assert launch.ranks_on_hosts(str(ROOT / "ds_configs/hostfile.example"), None) == 16
    path = hostfile("me@10.0.0.1 slots=1\nnode_2.x-y.org slots=2\n")
    assert launch.ranks_on_hosts(path, None) == 3


def test_a_hostfile_that_is_wrong_is_refused(hostfile):
    path = hostfile("worker-1 slots=8\n")
    with refuses("hosts: Hostname 'w' not found in hostfile"):
        launch.ranks_on_hosts(path, None, ["--exclude", "w"])
    with refuses("hosts: Hostfile contains a bad entry: worker-1"):
        launch.ranks_on_hosts(hostfile("worker-1\n"), None)
    with refuses("hosts: a has 0 slots for 1 ranks"):
        launch.ranks_on_hosts(hostfile("a slots=0\n"), None)
    with refuses("hosts: a has 99,999,999,999 slots; a host has 4,096"):
        launch.ranks_on_hosts(hostfile("a slots=99999999999\n"), None, ["--include", "a"])
    with refuses("hosts: holds a NUL character"):
        launch.ranks_on_hosts(hostfile("a slots=1\0\n"), None)


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=touch${IFS}x", "-l", "me@-x", "a,b", "exec:a", "n[1-2]", "a;b", "ö"]
)
def test_what_is_no_name_of_a_host_does_not_reach_ssh(hostfile, host):
    path = hostfile(f"a slots=1\n{host} slots=1\n")
    with refuses(r"hosts: \S+ is no host's name"):
        launch.launch_on_hosts(["pretrain", "paper"], path, ranks=None, options=[])


def test_deepspeed_gets_the_hosts_the_variables_and_the_users_options(
    tmp_path, hostfile, monkeypatch
):
    """In pdsh's place is a program that shows what it is asked to do."""
    (tmp_path / "pdsh").write_text('#!/bin/sh\necho "$@" > "$0.asked"; exit 3\n')
    (tmp_path / "pdsh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("SECRET", "not for others")
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "")  # restored at the end: it is added to
    options = "--no_ssh_check --master_addr 10.7.7.7".split()
    path = hostfile("a slots=2\nb slots=2\n")
    code = launch.launch_on_hosts(["pretrain", "it's"], path, ranks=1, options=options)
    asked = (tmp_path / "pdsh.asked").read_text()
    assert code == 1
    assert " -w a,b " in asked
    assert "--master_addr=10.7.7.7" in asked
    assert "export GLOO_SOCKET_IFNAME=lo;" in asked
    assert "SECRET" not in asked
    words = shlex.join(["ds_minimodel", "pretrain", "it's"])
    assert asked.endswith(f"--module --enable_each_rank_log=None {words}\n")


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    launch.check_ranks(2)
    monkeypatch.setattr(launch.Path, "exists", lambda path: "nvidia" in str(path))
    assert launch.has_gpu()
    launch.check_ranks(2)
    with refuses("--ranks 3: this host shows 2 GPUs"):
        launch.check_ranks(3)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    launch.check_ranks(3)
    assert not launch.has_gpu()


def test_threads_do_not_spin_beside_other_work(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    for percent, spins in ((90.0, "0"), (0.0, launch.CPU["GOMP_SPINCOUNT"])):
        every_core = [percent] * os.cpu_count()
        monkeypatch.setattr(psutil, "cpu_percent", lambda *_, found=every_core, **__: found)
        assert launch.busy_cores() == pytest.approx(percent / 100 * cores)
        assert launch.cpu_settings() == {**launch.CPU, "GOMP_SPINCOUNT": spins}
    # Ranks that start beside this one keep as many cores busy.
    monkeypatch.setattr(launch, "busy_cores", lambda: 1.0)
    assert launch.cpu_settings(starting=2) == launch.CPU
