"""Two hosts train together, one of them is lost in the middle, and the run goes on; all on this
machine, as root.

    bash scripts/two_hosts.sh [hostfile|torchrun|extend …]

A host is a set of Linux namespaces (network, process ids, host name, mounts) with an sshd and keys
made on the spot; a bridge in a third network connects them. For each launcher training starts on
both, one is lost between two checkpoints (its network first, then all of its processes), and it is
told what the command on the other says and how it ends. What is left of it there is then killed.
The same command, with the host back, must end with the losses and the bits of an undisturbed run of
two ranks on one host. `extend --hostfile`, over the body that was trained, loses no host; it must
end with the bits of two ranks on one host, too.
"""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from ds_minimodel.common.files import read_json_lines

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("node-a", "node-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
LAUNCHERS = ("hostfile", "torchrun", "extend")
STEPS = 120
CHECKPOINT_EVERY = 20
LOST_AFTER = 50
PATIENCE = 120  # seconds for a command to end on its own after a host is lost, before it is ended
# With --pdeathsig, so that no host outlives this process.
NAMESPACES = (
    "setpriv --pdeathsig KILL unshare --net --uts --pid --fork --mount-proc --kill-child".split()
)
ALIVE = "-o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""
SSH = """
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
LogLevel ERROR
"""
RECIPE = """
workdir: {folder}/reference
seed: 1
systems: [bl_base]
languages: {{source: en, targets: [xx]}}
tokenizer: {{kind: byte-bpe, vocab_size: 300}}
data: {{blocks: complete, workers: 1, text: {{en: {folder}/text.txt, xx: {folder}/text.txt}}}}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 32}}
mini: {{depth: 1, new_layers: 1}}
pretrain: {{steps: {steps}, batch_size: 8, seq_length: 32, lr: 1e-3, warmup_steps: 2}}
build_mini: {{seq_length: 32}}
adapt: {{seq_length: 32}}
engine: {{zero_stage: 1, precision: fp32, micro_batch_size: 4}}
checkpoint: {{every: {every}}}
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
            for process in [
                *psutil.Process(self.pid).children(recursive=True),
                psutil.Process(self.pid),
            ]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.wait()


class Cluster:
    """Two hosts, keys and configuration of ssh in `folder`, and a hostfile with one slot a host."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.hosts: dict[int, Process] = {}
        for name in ("key", "host_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
            )
        names = [("127.0.0.1", "localhost"), *zip(ADDRESSES, NAMES, strict=True)]
        for name, text in {
            "sshd_config": SSHD.format(folder=folder),
            "ssh_config": SSH.format(folder=folder),
            "known_hosts": f"* {(folder / 'host_key.pub').read_text()}",
            "hostfile": "".join(f"{name} slots=1\n" for name in NAMES),
            "hosts": "".join(f"{address} {name}\n" for address, name in names),
            # In ssh's place, so that deepspeed and pdsh find hosts and keys as on a real cluster.
            "ssh": f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n',
        }.items():
            (folder / name).write_text(text)
        (folder / "ssh").chmod(0o755)
        bridge = "ip link add br0 type bridge && ip link set br0 up && exec sleep infinity"
        self.bridge = self._kept(Process([*NAMESPACES, "sh", "-c", bridge]))
        until(lambda: succeeds(self._on_bridge("show", "br0")), "the bridge")
        for number in range(2):
            self.start(number)

    def start(self, number: int) -> None:
        """Start one host and wait until it takes connections."""
        setup = f"""hostname {NAMES[number]}; mount --bind {self.folder}/hosts /etc/hosts
            mkdir -p /run/sshd
            ip link set lo up; until ip link set eth0 up 2>/dev/null; do sleep 0.1; done
            ip address add {ADDRESSES[number]}/24 dev eth0
            exec {shutil.which("sshd")} -D -f {self.folder}/sshd_config"""
        command = [*NAMESPACES, "sh", "-ec", setup]
        host = self.hosts[number] = self._kept(Process(command, stderr=subprocess.DEVNULL))
        until(lambda: host.innermost != host.pid, NAMES[number])
        port = f"port{number}"
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(host.innermost)]
        subprocess.run(self._on_bridge("add", port, *cable), check=True)
        subprocess.run(self._on_bridge("set", port, "master", "br0", "up"), check=True)
        probe = [f"{self.folder}/ssh", *ALIVE.split(), NAMES[number], "true"]
        until(lambda: succeeds([*self._on_first_host(), *probe]), f"the sshd of {NAMES[number]}")

    def lose(self, number: int) -> None:
        """Cut a host's network, so that no last word reaches the other; then kill all of its
        processes.
        """
        subprocess.run(self._on_bridge("delete", f"port{number}"), check=True)
        self.hosts[number].close()

    def run(self, command: Sequence[str], log: Path) -> Process:
        """Start a command on the first host; its output goes to the file `log`."""
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        with open(log, "w") as file:
            command = [*self._on_first_host(), *command]
            return self._kept(Process(command, stdout=file, stderr=file, env=environment, cwd=ROOT))

    def _kept(self, process: Process) -> Process:
        return self.stack.enter_context(contextlib.closing(process))

    def _on_bridge(self, *words: str) -> list[str]:
        return ["nsenter", f"--target={self.bridge.innermost}", "--net", "ip", "link", *words]

    def _on_first_host(self) -> list[str]:
        """What stands before a command so that it runs there."""
        return [
            "nsenter",
            f"--target={self.hosts[0].innermost}",
            "--net",
            "--uts",
            "--pid",
            "--mount",
            f"--wd={ROOT}",
        ]


def command_of(launcher: str, folder: Path, workdir: Path) -> list[str]:
    """Command that a user would give on the first host."""
    ours = ["-m", "ds_minimodel", "pretrain", f"{folder}/recipe.yaml", f"workdir={workdir}"]
    if launcher == "hostfile":
        return [sys.executable, *ours, "--hostfile", f"{folder}/hostfile"]

    def on_host(rank: int) -> str:
        meeting = [
            "--nnodes",
            "2",
            "--node_rank",
            str(rank),
            "--nproc_per_node",
            "1",
            "--master_addr",
            NAMES[0],
        ]
        return shlex.join([sys.executable, "-m", "torch.distributed.run", *meeting, *ours])

    variables = [
        f"{name}={os.environ[name]}" for name in ("PYTHONPATH", "OMP_NUM_THREADS", "DS_ACCELERATOR")
    ]
    there = f"cd {ROOT} && env {shlex.join(variables)} {on_host(1)}"
    return ["sh", "-c", f"ssh {ALIVE} {NAMES[1]} {shlex.quote(there)} & exec {on_host(0)}"]


def losses_of(workdir: Path) -> list[tuple[int, float]]:
    """(step, loss) of the training in a workdir."""
    records = read_json_lines(workdir / "pretrain" / "bl_base" / "run" / "metrics.jsonl")
    return [(record["step"], record["loss"]) for record in records if record["step"]]


def outcome(workdir: Path) -> tuple[list[tuple[int, float]], Any]:
    """Losses, and hashes of all that training made."""
    record = json.loads((workdir / "pretrain" / "bl_base.job.json").read_text())
    return losses_of(workdir), record["artifacts"]


def make_reference(folder: Path) -> tuple:
    """Text, recipe, and an undisturbed run of two ranks on one host."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(50)]
    (folder / "text.txt").write_text(
        "\n".join(" ".join(rng.choices(words, k=8)) for _ in range(2000))
    )
    (folder / "recipe.yaml").write_text(
        RECIPE.format(folder=folder, steps=STEPS, every=CHECKPOINT_EVERY)
    )
    for step, *ranks in (["corpus"], ["tokenizer"], ["prepare"], ["pretrain", "--ranks", "2"]):
        command = [sys.executable, "-m", "ds_minimodel", step, f"{folder}/recipe.yaml", *ranks]
        subprocess.run(
            command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    return outcome(folder / "reference")


def trial(cluster: Cluster, launcher: str, reference: tuple) -> None:
    """Train with one launcher, lose the second host, go on; say what was seen."""
    workdir = cluster.folder / "runs" / launcher
    log = cluster.folder / f"{launcher}.log"
    for part in ("tokenizer", "tokens"):
        shutil.copytree(cluster.folder / "reference" / part, workdir / part)
    command = command_of(launcher, cluster.folder, workdir)
    process = cluster.run(command, log)
    until(
        lambda: len(losses_of(workdir)) >= LOST_AFTER or process.poll() is not None, "training", 300
    )
    step = len(losses_of(workdir))
    began = time.monotonic()
    must(
        process.poll() is None,
        log,
        f"{launcher}: ended with code {process.poll()} before a host was lost",
    )
    cluster.lose(1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    ended = "had not ended" if process.poll() is None else f"ended with {process.returncode}"
    say(
        f"{launcher}: host lost after step {step}; the command {ended} after "
        f"{time.monotonic() - began:.0f} s; it said"
    )
    for line in log.read_text().splitlines():
        if "ds-minimodel: " in line or "pdsh@" in line or "Error" in line:
            say(f"    {line[:300]}")
    process.close()
    cluster.hosts[0].close()  # and with it what is left there
    for number in range(2):
        if number == 0:
            subprocess.run(cluster._on_bridge("delete", "port0"), capture_output=True)
        cluster.start(number)
    log = cluster.folder / f"{launcher}-again.log"
    code = cluster.run(command, log).wait(300)
    must(code == 0, log, f"{launcher}: the second run ended with code {code}")
    must(
        outcome(workdir) == reference,
        log,
        f"{launcher}: not the losses or the bits of the undisturbed run",
    )
    say(f"{launcher}: resumed to the same bits")


def try_extend(cluster: Cluster) -> None:
    """Add a language on both hosts, and with two ranks on one; say what was seen."""
    folder = cluster.folder
    log = cluster.folder / "extend.log"
    found = []
    lines = (folder / "text.txt").read_text().splitlines()
    (folder / "new.txt").write_text("\n\n".join(line[::-1] for line in lines))
    model = f"{folder}/reference/pretrain/bl_base/model"
    for place, own in (("two", ["--hostfile", f"{folder}/hostfile"]), ("one", ["--ranks", "2"])):
        words = [
            model,
            f"{folder}/new.txt",
            "--language",
            "yy",
            "--out",
            f"{folder}/{place}",
            "--tokens",
            "5k",
            *own,
        ]
        code = cluster.run([sys.executable, "-m", "ds_minimodel", "extend", *words], log).wait(300)
        must(code == 0, log, f"extend: ended with code {code}")
        found.append((folder / place / "model" / "model.safetensors").read_bytes())
    must(found[0] == found[1], log, "extend: not the bits of two ranks on one host")
    say("extend: the bits of two ranks on one host")


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


def must(holds: object, log: Path, message: str) -> None:
    """End the process with the log and a message unless `holds`."""
    if not holds:
        sys.exit(f"{log.read_text()}\ntwo_hosts: {message}")


def say(text: str) -> None:
    """Print a line on standard error."""
    print(f"two_hosts: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Make two hosts and try the launchers."""
    os.environ.update({"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are taken down
    if not succeeds(
        [
            *NAMESPACES,
            "sh",
            "-c",
            "mount --bind /etc/hosts /etc/hosts && ip link add br0 type bridge",
        ]
    ):
        sys.exit("two_hosts: network namespaces cannot be made here")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-hosts-")))
        reference = make_reference(folder)
        cluster = Cluster(folder, stack)
        for launcher in sys.argv[1:] or LAUNCHERS:
            if launcher == "extend":
                try_extend(cluster)
            else:
                trial(cluster, launcher, reference)


if __name__ == "__main__":
    main()
