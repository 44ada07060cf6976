"""Two hosts train together, one of them dies in the middle, and the run goes on; all on this machine.

    bash scripts/two_hosts.sh [--launchers ssh,pdsh,mpirun,torchrun | --short] [--loopback] [--out FOLDER]

The hosts are those of local_cluster.py. For every launcher training starts on both, one is lost between two
checkpoints (its network first, then all of its processes), and the other must end with a clear line and exit code 1.
The same command, with the host back, must then end with the losses and the bits of an undisturbed run of two ranks
on one host. Besides, SIGTERM to the command that started ranks by ssh must make both hosts save, and `prepare` under
mpirun on both must give the bytes of one process. On loopback addresses mpirun is left out: it tells hosts by their
names.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from local_cluster import NAMES, ROOT, Cluster, Loopback, cluster_class, until

from ds_minimodel.common.files import read_json_lines, write_json

NOTICED_WITHIN = 180  # seconds from the loss of a host to the end of the run on the other
STEPS, CHECKPOINT_EVERY, LOST_AFTER = 120, 20, 50
EXPORTED = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")

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


def command_of(launcher: str, folder: Path, step: str, workdir: Path) -> list[str]:
    """Command that a user would give on the first host."""
    ours, hostfile = [step, f"{folder}/recipe.yaml", f"workdir={workdir}"], f"{folder}/hostfile"
    if launcher == "ssh":
        return [sys.executable, "-m", "ds_minimodel", *ours, "--hostfile", hostfile]
    script = {"pdsh": "deepspeed"}.get(launcher, launcher)
    command = ["bash", f"{ROOT}/scripts/launch/{script}.sh", hostfile, *ours]
    if launcher != "torchrun":
        return command
    # torchrun is started on every host.
    variables = [f"{name}={os.environ[name]}" for name in EXPORTED]
    there = shlex.quote(f"cd {ROOT} && {shlex.join(['env', *variables, *command])}")
    return ["sh", "-c", f"ssh -o ServerAliveInterval=5 {NAMES[1]} {there} & {shlex.join(command)}"]


def last_step(workdir: Path) -> int:
    """Last training step that a workdir has a loss of, 0 before the first."""
    lines = read_losses(workdir)
    return lines[-1][0] if lines else 0


def read_losses(workdir: Path) -> list[tuple[int, float]]:
    """(step, loss) of the training in a workdir."""
    path = workdir / "pretrain" / "bl_base" / "run" / "metrics.jsonl"
    return [(record["step"], record["loss"]) for record in read_json_lines(path) if record["step"]]


def outcome(workdir: Path) -> tuple[list[tuple[int, float]], Any]:
    """Losses, and hashes of all that training made."""
    record = json.loads((workdir / "pretrain" / "bl_base.job.json").read_text())
    return read_losses(workdir), record["artifacts"]


def make_reference(folder: Path) -> tuple:
    """Text, recipe, and an undisturbed run of two ranks on one host."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij", k=4)) for _ in range(50)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(2000)))
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder, steps=STEPS, every=CHECKPOINT_EVERY))
    for step, *ranks in (["tokenizer"], ["prepare"], ["pretrain", "--ranks", "2"]):
        command = [sys.executable, "-m", "ds_minimodel", step, f"{folder}/recipe.yaml", *ranks]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return outcome(folder / "reference")


def trial(cluster: Cluster, launcher: str, folder: Path, reference: tuple) -> dict[str, Any]:
    """Train with one launcher, lose the second host, go on; return what was seen."""
    workdir, log = new_workdir(folder, launcher), folder / f"{launcher}.log"
    command = command_of(launcher, folder, "pretrain", workdir)
    process = cluster.run(command, log)
    until(lambda: last_step(workdir) >= LOST_AFTER or process.poll() is not None, "training", 300)
    step, began = last_step(workdir), time.monotonic()
    must(process.poll() is None, log, f"{launcher}: ended with code {process.poll()} before a host was lost")
    cluster.lose(1)
    try:
        code_when_lost = process.wait(NOTICED_WITHIN)
    except subprocess.TimeoutExpired:
        must(False, log, f"{launcher}: hangs without its second host")
    seconds = time.monotonic() - began
    said = [line for line in log.read_text().splitlines() if "ds-minimodel: " in line and " is lost" in line]
    must(code_when_lost == 1 and said, log, f"{launcher}: exit code {code_when_lost}, {len(said)} lines on the loss")
    cluster.start(1)
    log = folder / f"{launcher}-again.log"
    code = cluster.run(command, log).wait(300)
    must(code == 0, log, f"{launcher}: the second run ended with code {code}")
    must(outcome(workdir) == reference, log, f"{launcher}: not the losses or the bits of the undisturbed run")
    print(
        f"two_hosts: {launcher}: host lost after step {step}, noticed in {seconds:.0f} s, resumed to the same bits",
        file=sys.stderr,
    )
    return {
        "launcher": launcher,
        "lost_after_step": step,
        "seconds": round(seconds),
        "exit_code": code_when_lost,
        "line": said[0][said[0].index("ds-minimodel") :],
    }


def stop(cluster: Cluster, folder: Path, reference: tuple) -> None:
    """SIGTERM to the command that started ranks on both hosts: they save, it ends with 0, and goes on later."""
    workdir, log = new_workdir(folder, "stopped"), folder / "stopped.log"
    command = command_of("ssh", folder, "pretrain", workdir)
    process = cluster.run(command, log)
    until(lambda: last_step(workdir) >= LOST_AFTER or process.poll() is not None, "training", 300)
    cluster.interrupt(process, signal.SIGTERM)
    must(process.wait(120) == 0, log, f"stop: exit code {process.poll()} after SIGTERM")
    must("stopped after step" in log.read_text(), log, "stop: no word of it")
    must(cluster.run(command, log).wait(300) == 0, log, "stop: the second run failed")
    must(outcome(workdir) == reference, log, "stop: not the losses or the bits of the undisturbed run")
    print("two_hosts: stopped by SIGTERM, saved on both hosts, resumed to the same bits", file=sys.stderr)


def new_workdir(folder: Path, name: str) -> Path:
    """Workdir whose text is prepared."""
    for part in ("tokenizer", "tokens"):
        shutil.copytree(folder / "reference" / part, folder / name / part)
    return folder / name


def prepare_on_both(cluster: Cluster, folder: Path) -> None:
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


def must(holds: object, log: Path, message: str) -> None:
    """End the process with the log and a message unless `holds`."""
    if not holds:
        sys.exit(f"{log.read_text()}\ntwo_hosts: {message}")


def write_report(folder: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    """Write what was seen as Markdown and JSON."""
    facts = {
        "hosts": kind,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "steps": STEPS,
        "checkpoint_every": CHECKPOINT_EVERY,
        "rows": rows,
    }
    write_json(folder / "two_hosts.json", facts)
    lines = [
        "# A host is lost in the middle of training",
        "",
        f"`bash scripts/two_hosts.sh`, {facts['date']}: two hosts ({kind}) on {os.cpu_count()} cores, one "
        f"rank each, gloo, {STEPS} steps, a checkpoint every {CHECKPOINT_EVERY}. After the host was back the "
        "same command ended, for every launcher, with the losses and the artifacts, bit for bit, of an "
        "undisturbed run of two ranks on one host.",
        "",
        "| launcher | host lost after step | run ended after | exit code | resumed to the same bits |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['launcher']} | {row['lost_after_step']} | {row['seconds']} s | {row['exit_code']} | yes |"
        for row in rows
    ]
    said = sorted({row["line"] for row in rows})
    lines += ["", "What the surviving host said:", "", *(f"    {line}" for line in said)]
    if any(row["launcher"] == "mpirun" for row in rows):
        lines += ["", "`prepare` under mpirun on both hosts gave the bytes of one process."]
    (folder / "two_hosts.md").write_text("\n".join([*lines, ""]))


def main() -> None:
    """Make two hosts, try the launchers, write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launchers", default="ssh,pdsh,mpirun,torchrun", help="default: %(default)s")
    parser.add_argument("--short", action="store_true", help="only the loss of a host, by ssh")
    parser.add_argument("--loopback", action="store_true", help="no namespaces: two sshd on loopback addresses")
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="for two_hosts.md and two_hosts.json")
    options = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts are taken down
    launchers = ["ssh"] if options.short else options.launchers.split(",")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-hosts-")))
        kind = Loopback if options.loopback else cluster_class()
        cluster = kind(folder, stack)
        print(f"two_hosts: {cluster.kind}", file=sys.stderr)
        reference = make_reference(folder)
        for number in range(2):
            cluster.start(number)
        if "mpirun" in launchers and kind is Loopback:
            print("two_hosts: mpirun: left out, it needs hosts of different names", file=sys.stderr)
            launchers.remove("mpirun")
        elif "mpirun" in launchers:
            prepare_on_both(cluster, folder)
        if "ssh" in launchers and not options.short:
            stop(cluster, folder, reference)
        rows = [trial(cluster, launcher, folder, reference) for launcher in launchers]
    if options.out:
        write_report(options.out, cluster.kind, rows)


if __name__ == "__main__":
    main()
