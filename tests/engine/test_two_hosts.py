"""The short form of scripts/two_hosts.py, and that the commands of docs/launch.md are those which it runs."""

import os
import shutil
import subprocess
import sys

import pytest

from ..docs import ROOT, commands

PATH = f"{os.environ['PATH']}:/usr/sbin"


@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not (shutil.which("ssh-keygen") and shutil.which("sshd", path=PATH)),
    reason="sshd is not installed (Debian: openssh-server)",
)
def test_a_run_on_two_hosts_goes_on_after_one_is_lost():
    done = subprocess.run(
        [sys.executable, "scripts/two_hosts.py", "--short"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PATH": PATH},
    )
    assert done.returncode == 0, done.stderr
    assert "two_hosts: ssh: host lost after step" in done.stderr and "resumed to the same bits" in done.stderr


def test_commands_on_hosts_are_those_of_the_demonstration(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from two_hosts import EXPORTED, command_of

    for name in EXPORTED:
        monkeypatch.setenv(name, "")
    shown = []
    for launcher, step in (
        ("ssh", "pretrain"),
        ("pdsh", "pretrain"),
        ("mpirun", "pretrain"),
        ("mpirun", "prepare"),
        ("torchrun", "pretrain"),
    ):
        line = " ".join(command_of(launcher, "FOLDER", step, "WORKDIR")).replace(" workdir=WORKDIR", "")
        for there, here in (
            (f"{sys.executable} -m ds_minimodel", "ds-minimodel"),
            (f"{ROOT}/", ""),
            ("FOLDER/recipe.yaml", "RECIPE"),
            ("FOLDER/hostfile", "HOSTS"),
        ):
            line = line.replace(there, here)
        shown.append(line.rpartition(" & ")[2])
    assert {*shown} <= {*commands("docs/launch.md")}
