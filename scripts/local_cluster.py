"""Two hosts on one machine, for two_hosts.py; the first is where commands are given.

Each is a set of Linux namespaces (network, process ids, host name, mounts) with an sshd and keys made on the
spot; a bridge in a third network connects them. Where namespaces are forbidden, they are two sshd on 127.0.0.1
and 127.0.0.2. All of it ends with the process that made it.
"""

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from ds_minimodel.engine.ranks.rendezvous import free_port

ROOT = Path(__file__).resolve().parent.parent
NAMES, ADDRESSES = ("node-a", "node-b"), ("10.77.0.1", "10.77.0.2")
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]  # so that no host outlives this process
NAMESPACES = [*WITH_PARENT, "unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
SSH = """
Host *
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
User {user}
LogLevel ERROR
"""


class Process(subprocess.Popen):
    """Process in a session of its own; `close` kills it and all that came of it."""

    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        super().__init__(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)

    @property
    def innermost(self) -> int:
        """Process id, seen from here, of the process within the namespaces that `unshare` made."""
        return next((child.pid for child in psutil.Process(self.pid).children()), self.pid)

    def close(self) -> None:
        """Kill the process and all that came of it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.wait()


class Cluster:
    """Keys and configuration of ssh in `folder`, a hostfile with one slot a host. Subclasses make the hosts."""

    kind: str  # for the report

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.hosts: dict[int, Process] = {}
        for name in ("key", "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        (folder / "sshd_config").write_text(SSHD.format(folder=folder))
        (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
        (folder / "ssh_config").write_text(self.ssh_lines() + SSH.format(folder=folder, user=getpass.getuser()))
        (folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
        # In ssh's place, so that deepspeed, pdsh and mpirun find hosts and keys as on a real cluster.
        wrapper = folder / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)

    def ssh_lines(self) -> str:
        """Lines of ssh's configuration that lead to the hosts."""
        raise NotImplementedError

    @property
    def on_first_host(self) -> list[str]:
        """What stands before a command so that it runs on the first host."""
        raise NotImplementedError

    def new_host(self, number: int) -> Process:
        """Start a host's sshd."""
        raise NotImplementedError

    def start(self, number: int) -> None:
        """Start one host and wait until it takes connections."""
        self.hosts[number] = self.stack.enter_context(contextlib.closing(self.new_host(number)))
        probe = [f"{self.folder}/bin/ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", NAMES[number]]
        until(lambda: succeeds([*self.on_first_host, *probe, "true"]), f"the sshd of {NAMES[number]}")

    def lose(self, number: int) -> None:
        """Kill a host's first process, and with it all others."""
        self.hosts[number].close()

    def run(self, command: Sequence[str], log: Path) -> Process:
        """Start a command on the first host; its output goes to the file `log`."""
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        with open(log, "w") as file:
            return self.stack.enter_context(
                contextlib.closing(
                    Process([*self.on_first_host, *command], stdout=file, stderr=file, env=environment, cwd=ROOT)
                )
            )

    def interrupt(self, process: Process, number: int) -> None:
        """Send a signal to the command itself, not to what brought it onto the host."""
        os.kill(process.innermost if self.on_first_host else process.pid, number)


class Namespaces(Cluster):
    """Hosts as sets of Linux namespaces."""

    kind = "network namespaces"

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        super().__init__(folder, stack)
        names = [("127.0.0.1", "localhost"), *zip(ADDRESSES, NAMES, strict=True)]
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in names))
        setup = "ip link add br0 type bridge && ip link set br0 up && exec sleep infinity"
        self.bridge = stack.enter_context(contextlib.closing(quiet([*NAMESPACES, "sh", "-c", setup])))
        until(lambda: succeeds(self.on_bridge("ip", "link", "show", "br0")), "the bridge")

    def ssh_lines(self) -> str:
        return ""

    @property
    def on_first_host(self) -> list[str]:
        target = f"--target={self.hosts[0].innermost}"
        return ["nsenter", target, "--net", "--uts", "--pid", "--mount", f"--wd={ROOT}"]

    def on_bridge(self, *command: str) -> list[str]:
        """A command that runs in the network of the bridge."""
        return ["nsenter", f"--target={self.bridge.innermost}", "--net", *command]

    def new_host(self, number: int) -> Process:
        setup = f"""hostname {NAMES[number]}; mount --bind {self.folder}/hosts /etc/hosts; mkdir -p /run/sshd
            ip link set lo up; until ip link set eth0 up 2>/dev/null; do sleep 0.1; done
            ip address add {ADDRESSES[number]}/24 dev eth0
            exec {shutil.which("sshd")} -D -f {self.folder}/sshd_config"""
        host, port = quiet([*NAMESPACES, "sh", "-ec", setup]), f"port{number}"
        until(lambda: host.innermost != host.pid, NAMES[number])
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(host.innermost)]
        subprocess.run(self.on_bridge("ip", "link", "add", port, *cable), check=True)
        subprocess.run(self.on_bridge("ip", "link", "set", port, "master", "br0", "up"), check=True)
        return host

    def lose(self, number: int) -> None:
        """First the network, so that no last word reaches the other host."""
        subprocess.run(self.on_bridge("ip", "link", "delete", f"port{number}"), check=True)
        super().lose(number)


class Loopback(Cluster):
    """Hosts as two sshd on 127.0.0.1 and 127.0.0.2."""

    kind = "two sshd on loopback addresses"

    @property
    def on_first_host(self) -> list[str]:
        return []

    def ssh_lines(self) -> str:
        self.ports = [free_port(), free_port()]
        return "".join(
            f"Host {name}\nHostName 127.0.0.{number + 1}\nPort {port}\n"
            for number, (name, port) in enumerate(zip(NAMES, self.ports, strict=True))
        )

    def new_host(self, number: int) -> Process:
        address = f"ListenAddress=127.0.0.{number + 1}:{self.ports[number]}"
        return quiet([*WITH_PARENT, str(shutil.which("sshd")), "-D", "-f", f"{self.folder}/sshd_config", "-o", address])


def cluster_class() -> type[Cluster]:
    """Namespaces where they can be made, else Loopback."""
    trial = "mount --bind /etc/hosts /etc/hosts && ip link add br0 type bridge"
    return Namespaces if succeeds([*NAMESPACES, "sh", "-c", trial]) else Loopback


def until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until `holds`; end the process after `seconds` in vain."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"two_hosts: waited {seconds} s for {what} in vain")
        time.sleep(0.1)


def succeeds(command: Sequence[str | Path]) -> bool:
    """Whether a command ends with 0."""
    return subprocess.run(command, capture_output=True).returncode == 0


def quiet(command: Sequence[str]) -> Process:
    """Process whose standard error nobody reads."""
    return Process(command, stderr=subprocess.DEVNULL)
