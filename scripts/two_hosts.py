"""Two hosts on one machine train together, one of them dies in the middle, and the run goes on.

    bash scripts/two_hosts.sh [--launchers ssh,pdsh,mpirun] [--report FILE]

Each host is a set of Linux namespaces (network, process ids, host name, mounts) with an sshd of its own and keys
made on the spot; a bridge in a third network connects them. To lose a host is to kill its first process: all of its
processes and its network are gone at once, without a word to the other. Where namespaces are forbidden, the
hosts are two sshd on 127.0.0.1 and 127.0.0.2 (and mpirun, which tells hosts by their names, is left out).

For every launcher: training starts on both hosts, one is lost between two checkpoints, the other must end with a
clear line and an exit code other than 0; the same command, with the host back, goes on and must end with the
bits of an undisturbed run of two ranks on one host. Everything ends with this process.
"""

import argparse
import contextlib
import getpass
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
NAMES, ADDRESSES = ("node-a", "node-b"), ("10.77.0.1", "10.77.0.2")
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]        # whatever becomes of this process, its hosts end with it
NAMESPACES = [*WITH_PARENT, "unshare", "--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
NOTICED_WITHIN = 180                    # seconds from the loss of a host to the end of the run on the other
STEPS, CHECKPOINT_EVERY, LOST_AFTER = 120, 20, 50

RECIPE = """
workdir: {folder}/reference
seed: 1
systems: [bl_base]
languages: {{source: en, targets: [xx]}}
tokenizer: {{vocab_size: 40}}
data: {{blocks: complete, workers: 1, text: {{en: {folder}/text.txt, xx: {folder}/text.txt}}}}
model: {{num_layers: 2, hidden_size: 32, num_heads: 2, ffn_size: 64, max_positions: 32}}
mini: {{depth: 1, new_layers: 1, depths: [1, 2]}}
pretrain: {{steps: {steps}, batch_size: 8, seq_length: 32, lr: 1e-3, warmup_steps: 2}}
build_mini: {{seq_length: 32}}
adapt: {{seq_length: 32}}
engine: {{zero_stage: 1, precision: fp32, micro_batch_size: 4}}
checkpoint: {{every: {every}}}
"""
SSHD = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""


class Process(subprocess.Popen):
    """A process in a session of its own; `close` kills it and all that came of it."""

    def __init__(self, command, **options):
        super().__init__(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)

    @property
    def innermost(self):
        """The process id, seen from here, of the process within the namespaces that `unshare` made."""
        return next((child.pid for child in psutil.Process(self.pid).children()), self.pid)

    def close(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*psutil.Process(self.pid).children(recursive=True), psutil.Process(self.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.wait()


class Cluster:
    """Two hosts, and commands run on the first. Subclasses say what a host is."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.hosts = folder, stack, {}
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(SSHD.format(folder=folder))
        (folder / "known_hosts").write_text(f"* {(folder / 'host_key.pub').read_text()}")
        (folder / "hostfile").write_text("".join(f"{name} slots=1\n" for name in NAMES))
        # In ssh's place, so that deepspeed, pdsh and mpirun find hosts and keys as on a cluster that is set up.
        wrapper = folder / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)

    def write_ssh_config(self, lines):
        common = ["Host *", f"IdentityFile {self.folder}/key", f"UserKnownHostsFile {self.folder}/known_hosts",
                  "IdentitiesOnly yes", f"User {getpass.getuser()}", "LogLevel ERROR"]
        (self.folder / "ssh_config").write_text("\n".join([*lines, *common, ""]))

    def start(self, number):
        """Start one host and wait until it takes connections."""
        self.hosts[number] = self.stack.enter_context(contextlib.closing(self.new_host(number)))
        probe = [self.folder / "bin" / "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", NAMES[number], "true"]
        until(lambda: succeeds([*self.on_first_host, *probe]), f"the sshd of {NAMES[number]}")

    def lose(self, number):
        self.hosts[number].close()

    def run(self, command, log):
        """Start a command on the first host; its output goes to the file `log`."""
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        with open(log, "w") as file:
            return self.stack.enter_context(contextlib.closing(Process(
                [*self.on_first_host, *command], stdout=file, stderr=file, env=environment, cwd=ROOT)))


class Namespaces(Cluster):
    kind = "network namespaces"

    def __init__(self, folder, stack):
        super().__init__(folder, stack)
        self.write_ssh_config([])
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for address, name in
                                              [("127.0.0.1", "localhost"), *zip(ADDRESSES, NAMES)]))
        self.bridge = stack.enter_context(contextlib.closing(Process(
            [*NAMESPACES, "sh", "-c", "ip link add br0 type bridge && ip link set br0 up && exec sleep infinity"])))
        until(lambda: succeeds(self.on_bridge("ip", "link", "show", "br0")), "the bridge")

    @property
    def on_first_host(self):
        return ["nsenter", f"--target={self.hosts[0].innermost}", "--net", "--uts", "--pid", "--mount", f"--wd={ROOT}"]

    def lose(self, number):
        """First the network, so that no last word reaches the other host."""
        subprocess.run(self.on_bridge("ip", "link", "delete", f"port{number}"), check=True)
        super().lose(number)

    def on_bridge(self, *command):
        return ["nsenter", f"--target={self.bridge.innermost}", "--net", *command]

    def new_host(self, number):
        setup = f"""hostname {NAMES[number]}; mount --bind {self.folder}/hosts /etc/hosts; mkdir -p /run/sshd
            ip link set lo up; until ip link set eth0 up 2>/dev/null; do sleep 0.1; done
            ip address add {ADDRESSES[number]}/24 dev eth0
            exec {shutil.which("sshd")} -D -f {self.folder}/sshd_config"""
        host = Process([*NAMESPACES, "sh", "-ec", setup], stderr=subprocess.DEVNULL)
        until(lambda: host.innermost != host.pid, NAMES[number])
        subprocess.run(self.on_bridge("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0",
                                      "netns", str(host.innermost)), check=True)
        subprocess.run(self.on_bridge("ip", "link", "set", f"port{number}", "master", "br0", "up"), check=True)
        return host


class Loopback(Cluster):
    kind = "two sshd on loopback addresses, because namespaces are forbidden here"
    on_first_host = []

    def __init__(self, folder, stack):
        super().__init__(folder, stack)
        self.ports = [free_port(), free_port()]
        self.write_ssh_config([f"Host {name}\nHostName 127.0.0.{number + 1}\nPort {port}" for number, (name, port) in
                               enumerate(zip(NAMES, self.ports))])

    def new_host(self, number):
        return Process([*WITH_PARENT, shutil.which("sshd"), "-D", "-f", str(self.folder / "sshd_config"), "-o",
                        f"ListenAddress=127.0.0.{number + 1}", "-p", str(self.ports[number])])


def until(holds, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"two_hosts: waited {seconds} s for {what} in vain")
        time.sleep(0.1)


def succeeds(command):
    return subprocess.run(command, capture_output=True).returncode == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cluster_class():
    """Namespaces where they can be made, else Loopback."""
    if succeeds([*NAMESPACES, "sh", "-c", "mount --bind /etc/hosts /etc/hosts && ip link add br0 type bridge"]):
        return Namespaces
    return Loopback


def command_of(launcher, folder, step, workdir):
    """The command that a user would give on the first host."""
    ours, hostfile = [step, f"{folder}/recipe.yaml", f"workdir={workdir}"], f"{folder}/hostfile"
    if launcher == "ssh":
        return [sys.executable, "-m", "ds_minimodel", *ours, "--hostfile", hostfile]
    script = {"pdsh": "deepspeed"}.get(launcher, launcher)
    command = ["bash", f"{ROOT}/scripts/launch/{script}.sh", hostfile, *ours]
    if launcher != "torchrun":
        return command
    there = f"cd {ROOT} && {shlex.join(['env', *exported(), *command])}"        # torchrun is started on every host
    return ["sh", "-c", f"ssh -o ServerAliveInterval=5 {NAMES[1]} {shlex.quote(there)} & {shlex.join(command)}"]


def exported():
    return [f"{name}={os.environ[name]}" for name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ]


def last_step(workdir):
    lines = read_losses(workdir)
    return lines[-1][0] if lines else 0


def read_losses(workdir):
    path = Path(workdir) / "pretrain" / "bl_base" / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [(record["step"], record["loss"]) for record in map(json.loads, filter(lambda line: line[-1:] == "}", lines))]


def outcome(workdir):
    """Losses, and hashes of all that training made."""
    record = json.loads((Path(workdir) / "pretrain" / "bl_base.job.json").read_text())
    return read_losses(workdir), record["artifacts"]


def make_reference(folder):
    """Text, recipe, and an undisturbed run of two ranks on one host."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(50)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(2000)))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder, steps=STEPS, every=CHECKPOINT_EVERY))
    for step, *ranks in (["tokenizer"], ["prepare"], ["pretrain", "--ranks", "2"]):
        subprocess.run([sys.executable, "-m", "ds_minimodel", step, f"{folder}/recipe.yaml", *ranks], check=True, cwd=ROOT,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return outcome(folder / "reference")


def trial(cluster, launcher, folder, reference):
    """Train with one launcher, lose the second host, go on. Returns a row of the report; ends the script where
    something is not as it must be."""
    workdir, log = folder / launcher, folder / f"{launcher}.log"
    for part in ("tokenizer", "tokens"):
        shutil.copytree(folder / "reference" / part, workdir / part)
    command = command_of(launcher, folder, "pretrain", workdir)
    process = cluster.run(command, log)
    until(lambda: last_step(workdir) >= LOST_AFTER or process.poll() is not None, "training", 300)
    step, began = last_step(workdir), time.monotonic()
    must(process.poll() is None, log, f"{launcher}: ended with code {process.returncode} before a host was lost")
    cluster.lose(1)
    try:
        code = process.wait(NOTICED_WITHIN)
    except subprocess.TimeoutExpired:
        must(False, log, f"{launcher}: hangs without its second host")
    seconds = time.monotonic() - began
    said = [line for line in log.read_text().splitlines() if "ds-minimodel: " in line and " is lost" in line]
    must(code and said, log, f"{launcher}: exit code {code}, but no word of the loss")
    cluster.start(1)
    log = folder / f"{launcher}-again.log"
    code = cluster.run(command, log).wait(300)
    must(code == 0, log, f"{launcher}: the second run ended with code {code}")
    must(outcome(workdir) == reference, log, f"{launcher}: not the losses or the bits of the undisturbed run")
    print(f"two_hosts: {launcher}: host lost after step {step}, noticed in {seconds:.0f} s, resumed to the same bits",
          file=sys.stderr)
    return {"launcher": launcher, "lost_after_step": step, "seconds": round(seconds, 1), "said": said[0]}


def prepare_on_both(cluster, folder):
    """Tokenise a text of several chunks on the ranks of both hosts; it must give the store of one process."""
    lines = (folder / "text.txt").read_text()
    (folder / "long.txt").write_text("\n".join([lines] * (5 * 2**20 // len(lines))))
    stores = []
    for workdir in (folder / "alone", folder / "both"):
        shutil.copytree(folder / "reference" / "tokenizer", workdir / "tokenizer")
        text = [f"data.text.{language}={folder}/long.txt" for language in ("en", "xx")]
        command = [*command_of("mpirun", folder, "prepare", workdir), *text]
        if workdir.name == "alone":
            command = [sys.executable, "-m", "ds_minimodel", *command[3:]]
        log = folder / f"prepare-{workdir.name}.log"
        must(cluster.run(command, log).wait(300) == 0, log, "prepare: failed")
        stores.append({path.name: path.read_bytes() for path in (workdir / "tokens" / "en").iterdir()})
    must(stores[0] == stores[1], log, "prepare: not the bytes of one process")
    print("two_hosts: prepare under mpirun on both hosts: the bytes of one process", file=sys.stderr)


def must(holds, log, message):
    if not holds:
        sys.exit(f"{log.read_text()}\ntwo_hosts: {message}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launchers", default="ssh,pdsh,mpirun,torchrun", help="default: %(default)s")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write what was seen as JSON")
    options = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-hosts-")))
        cluster = cluster_class()(folder, stack)
        print(f"two_hosts: {cluster.kind}", file=sys.stderr)
        reference = make_reference(folder)
        for number in range(2):
            cluster.start(number)
        launchers = [name for name in options.launchers.split(",") if name != "mpirun" or cluster.kind == Namespaces.kind]
        if "mpirun" in launchers:
            prepare_on_both(cluster, folder)
        rows = [trial(cluster, launcher, folder, reference) for launcher in launchers]
    if options.report:
        options.report.write_text(json.dumps({"hosts": cluster.kind, "steps": STEPS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
