"""Hostfiles: what is refused, with file and line, before anything starts."""

import os

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.ranks import hosts, launch
from ds_minimodel.engine.ranks.hosts import environment, read_hostfile, survey


def hostfile(folder, text):
    path = folder / "hosts"
    path.write_text(text)
    return path


def test_hosts_and_slots_are_read(tmp_path):
    path = hostfile(tmp_path, "# ours\nworker-1 slots=8\n\nworker-2   slots=4  # the old one\n")
    assert [(host.name, host.slots) for host in read_hostfile(path)] == [("worker-1", 8), ("worker-2", 4)]
    assert [host.slots for host in read_hostfile(path, ranks=2)] == [2, 2]


@pytest.mark.parametrize(
    "text, fault",
    [
        ("worker-1\n", "hosts:1: 'worker-1' does not read `HOST slots=N`"),
        ("a slots=1\nb slots=two\n", "hosts:2: 'b slots=two' does not read"),
        ("a slots=0\n", "hosts:1: 'a slots=0' does not read"),
        ("-oProxyCommand=x slots=1\n", "hosts:1: '-oProxyCommand=x slots=1' does not read"),
        ("a slots=1\nb slots=2\na slots=1\n", "hosts:3: a stands in .*hosts:1 already"),
        ("# nobody\n", "hosts: names no host"),
        ("a slots=4\nb slots=1\n", "hosts:2: 1 slots, but --ranks asks for 2 on each host"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, fault):
    with pytest.raises(UserError, match=fault):
        read_hostfile(hostfile(tmp_path, text), ranks=2)


def ssh_that(tmp_path, monkeypatch, script):
    """Put a program in ssh's place; `$host` is the host, "$command" what it shall do there."""
    program = tmp_path / "ssh"
    program.write_text(
        "#!/bin/sh\nfor word; do host=$command; command=$word; done\n"
        'export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22"\n' + script
    )
    program.chmod(0o755)
    monkeypatch.setenv("DSMM_SSH", str(program))


def test_facts_come_from_every_host(tmp_path, monkeypatch):
    ssh_that(tmp_path, monkeypatch, 'exec sh -c "$command"')
    found = survey(read_hostfile(hostfile(tmp_path, "a slots=1\nb slots=1\n")))
    assert [facts["cores"] for facts in found] == [os.cpu_count()] * 2
    assert all(0 < facts["port"] < 1 << 16 and facts["address"] == "127.0.0.1" for facts in found)


@pytest.mark.parametrize(
    "script, fault",
    [
        (
            '[ $host = a ] && exec sh -c "$command"; echo "ssh: connect to host b port 22: No route" >&2; exit 255',
            r"hosts:2: ssh does not reach b \(ssh: connect to host b port 22: No route\)",
        ),
        (
            '[ $host = a ] && exec sh -c "$command"; echo "sh: cannot cd" >&2; exit 2',
            r"hosts:2: b cannot run .* \(sh: cannot cd\); all hosts need this folder",
        ),
        (
            '[ $host = a ] && exec sh -c "$command"; sh -c "$command" | sed \'s/"version": "[^"]*"/"version": "0.0"/\'',
            "hosts:2: b has ds_minimodel 0.0, this",
        ),
        ('sh -c "$command" | sed \'s/"cores": [0-9]*/"cores": 2/\'', "hosts:2: 3 slots, but b has 2 cores"),
        ('sh -c "$command" | sed \'s/"gpus": [0-9]*/"gpus": 2/\'', "hosts:2: 3 slots, but b has 2 gpus"),
    ],
)
def test_an_unfit_host_is_named(tmp_path, monkeypatch, script, fault):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    ssh_that(tmp_path, monkeypatch, script)
    with pytest.raises(UserError, match=fault):
        survey(read_hostfile(hostfile(tmp_path, "a slots=1\nb slots=3\n")))


def test_a_host_that_does_not_answer_is_named(tmp_path, monkeypatch):
    ssh_that(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(hosts, "SURVEY_TIMEOUT", 0.2)
    with pytest.raises(UserError, match="hosts:1: a did not answer within 0.2 s"):
        survey(read_hostfile(hostfile(tmp_path, "a slots=1\n")))


def test_the_environment_of_the_ranks(tmp_path, monkeypatch):
    (tmp_path / "ours").write_text("NCCL_DEBUG=INFO\n\nexpr=a=b\n")
    monkeypatch.setenv("DS_ENV_FILE", str(tmp_path / "ours"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    monkeypatch.setenv("SECRET", "not for others")
    found = environment()
    assert (found["NCCL_DEBUG"], found["expr"], found["GLOO_SOCKET_IFNAME"]) == ("INFO", "a=b", "eth9")
    assert "SECRET" not in found


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    launch.check_ranks(2)
    with pytest.raises(UserError, match="--ranks 3: this host shows 2 GPUs"):
        launch.check_ranks(3)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    launch.check_ranks(3)


@pytest.mark.parametrize(
    "visible, names", [("2,3", ["2", "3"]), ("GPU-8a,GPU-9b", ["GPU-8a", "GPU-9b"]), ("", []), ("-1", [])]
)
def test_gpus_are_those_that_the_user_shows(monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert launch.gpus() == names
