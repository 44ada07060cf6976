"""Ranks on the hosts of a hostfile: checked before anything starts, then a launcher on each over ssh.

DeepSpeed's own start over several hosts needs pdsh, passes hardly any environment on, and ends all launches
of a user to end one; this one needs ssh alone and ends what it started. See docs/launch.md.
"""

import ipaddress
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ds_minimodel import __version__
from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.ranks.launch import THIS_PROGRAM, code_after, exit_code, launcher_command, passing_on
from ds_minimodel.engine.ranks.rendezvous import source_address

SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3".split()
SURVEY_TIMEOUT = 60  # seconds for a host to answer with its facts: Python may start from a slow disk
GRACE = 60  # seconds for the other hosts to end on their own after one has failed

# Beginnings of the names of variables that go with the ranks to their hosts.
EXPORTED = tuple("DS_ DEEPSPEED_ DSMM_ NCCL_ GLOO_ TORCH_ OMP_ MKL_ MALLOC_ UCX_ PYTHON HF_ LD_LIBRARY_PATH".split())

Process = subprocess.Popen


class Host(NamedTuple):
    """A line of a hostfile. `where` is FILE:LINE, for messages."""

    name: str
    slots: int
    where: str


def read_hostfile(path: Path | str, ranks: int | None = None) -> list[Host]:
    """Hosts of a file with lines `HOST slots=N`, with `ranks` slots each where given.

    UserError for a missing file, a wrong line, a host named twice, fewer slots than ranks.
    """
    if not Path(path).is_file():
        raise UserError(f"--hostfile {path}: no such file; a line of it reads `HOST slots=N`")
    hosts: dict[str, Host] = {}
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([^\s-]\S*)\s+slots=0*([1-9]\d*)", line)
        if not match:
            raise UserError(f"{path}:{number}: {line!r} does not read `HOST slots=N`")
        name = match[1]
        if name in hosts:
            raise UserError(f"{path}:{number}: {name} stands in {hosts[name].where} already")
        hosts[name] = Host(name, int(match[2]), f"{path}:{number}")
    if not hosts:
        raise UserError(f"{path}: names no host; a line of it reads `HOST slots=N`")
    for host in hosts.values():
        if ranks and ranks > host.slots:
            raise UserError(f"{host.where}: {host.slots} slots, but --ranks asks for {ranks} on each host")
    return [host._replace(slots=ranks or host.slots) for host in hosts.values()]


def survey(hosts: Sequence[Host]) -> list[dict]:
    """Facts (on_host.py) of every host, asked at once over ssh.

    UserError for one that is not reached, cannot run this program in this folder, or has fewer cores (GPUs,
    where the first host has any) than slots.
    """
    with ThreadPoolExecutor(len(hosts)) as pool:
        found = list(pool.map(_facts_of, hosts))
    unit = "gpus" if found[0]["gpus"] and os.environ.get("DS_ACCELERATOR") != "cpu" else "cores"
    for host, facts in zip(hosts, found, strict=True):
        if facts["version"] != __version__:
            raise UserError(
                f"{host.where}: {host.name} has ds_minimodel {facts['version']}, this host "
                f"{__version__}; install the same on both"
            )
        if host.slots > facts[unit]:
            raise UserError(
                f"{host.where}: {host.slots} slots, but {host.name} has {facts[unit]} {unit}; a slot is one rank"
            )
    return found


def launch_on_hosts(arguments: Sequence[str], hosts: Sequence[Host]) -> int:
    """Run `python -m ds_minimodel ARGUMENTS` in every slot of the hosts (of read_hostfile).

    Returns the exit code, after all hosts have ended: 2 where the first that failed did so by the user's
    mistake, else 1. SIGINT and SIGTERM go on to the ranks, which save and end.
    """
    found = survey(hosts)
    meeting = _master_address(found), os.environ.get("MASTER_PORT", found[0]["port"])
    devices = {host.name: list(range(host.slots)) for host in hosts}
    program = [*THIS_PROGRAM, *arguments]
    commands = [launcher_command(devices, index, *meeting, program) for index in range(len(hosts))]
    processes = [
        subprocess.Popen(_ssh(host, command), stdin=subprocess.PIPE, start_new_session=True)
        for host, command in zip(hosts, commands, strict=True)
    ]
    with passing_on(lambda number, count: _end(processes, at_once=count > 1)) as received:
        code = _wait(hosts, processes, received)
    if received:
        sys.exit(code_after(received, code))
    return exit_code(code)


def _wait(hosts: Sequence[Host], processes: Sequence[Process], received: list[int]) -> int:
    """Wait until all hosts have ended; return the code of the first that failed, 0 where none did."""
    failed = None
    while any(process.poll() is None for process in processes):
        for host, process in zip(hosts, processes, strict=True):
            if process.poll() and failed is None:
                failed = process.returncode
                deadline = time.monotonic() + GRACE
                if not received and failed == 255:
                    print(
                        f"ds-minimodel: the connection to {host.name} is lost; the same command goes on from "
                        "the last checkpoint",
                        file=sys.stderr,
                    )
        if failed is not None and time.monotonic() > deadline:
            _end(processes, at_once=time.monotonic() > deadline + GRACE)
        time.sleep(0.2)
    codes = [process.returncode for process in processes]
    return failed or next(filter(None, codes), 0)


def _end(processes: Sequence[Process], at_once: bool) -> None:
    """Ask the hosts' launchers to end their ranks, which save first; at_once: do not wait for them."""
    for process in processes:
        assert process.stdin is not None  # a pipe, by launch_on_hosts
        process.stdin.close()
        if at_once and process.poll() is None:
            process.kill()


def _facts_of(host: Host) -> dict:
    command = _ssh(host, [sys.executable, "-m", "ds_minimodel.engine.ranks.on_host", "facts"])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SURVEY_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise UserError(f"{host.where}: {host.name} did not answer within {SURVEY_TIMEOUT} s") from None
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode == 255:
        raise UserError(
            f"{host.where}: ssh does not reach {host.name} ({said}); it must work without a "
            "password; DSMM_SSH='ssh -p PORT -i KEY' sets port and key"
        )
    if done.returncode:
        raise UserError(
            f"{host.where}: {host.name} cannot run {sys.executable} -m ds_minimodel in {os.getcwd()} "
            f"({said}); all hosts need this folder and this Python at the same place"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _ssh(host: Host, command: Sequence[str]) -> list[str]:
    """`command` as one that runs it on a host, in this folder, with this environment."""
    there = ["env", *(f"{name}={value}" for name, value in environment().items()), *command]
    return [
        *shlex.split(os.environ.get("DSMM_SSH", "ssh")),
        *SSH_OPTIONS,
        host.name,
        f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(there)}",
    ]


def environment() -> dict[str, str]:
    """Variables for the ranks: those of EXPORTED, and those of the .deepspeed_env files that DeepSpeed reads."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(EXPORTED)}
    for folder in (Path.home(), Path()):
        file = folder / os.environ.get("DS_ENV_FILE", ".deepspeed_env")
        if file.is_file():
            lines = (line.strip().partition("=") for line in file.read_text(encoding="utf-8").splitlines())
            chosen |= {name: value for name, equals, value in lines if equals}
    return chosen


def _master_address(found: Sequence[dict]) -> str | None:
    """Address of the first host that the others reach."""
    if "MASTER_ADDR" in os.environ:
        return os.environ["MASTER_ADDR"]
    first, *others = (facts["address"] for facts in found)
    far = [address for address in others if not ipaddress.ip_address(address).is_loopback]
    if far and ipaddress.ip_address(first).is_loopback:  # the first host is this one
        return source_address(far[0])
    return first
