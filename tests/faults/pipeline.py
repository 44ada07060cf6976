"""Kills whole pipelines at random: `run --ranks 2` of all five systems must end with the bits of an undisturbed run.

    python -m tests.faults.pipeline --kills 100 --report runs/faults_pipelines.json [--seed N]

For one ZeRO stage after another a run is started, ended in the middle of a step, and started again, until it is
complete. All that it leaves but the times in its records must be what the undisturbed run of that stage left, no
process may live on, and nothing half-written may lie about.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from ..pipeline.conftest import make_world
from ..pipeline.test_pipeline import results
from .record import write_report

# Who is ended, and by what. The launcher dies alone in the fourth: its ranks must see that it is gone.
KILLS = {
    "SIGKILL to all": ("all", signal.SIGKILL),
    "SIGKILL to one rank": ("rank", signal.SIGKILL),
    "SIGKILL to the command": ("command", signal.SIGKILL),
    "SIGKILL to the launcher": ("launcher", signal.SIGKILL),
    "SIGTERM to the command": ("command", signal.SIGTERM),
    "SIGINT to the command": ("command", signal.SIGINT),
}
LAUNCHER = "ds_minimodel.engine.ranks.on_host"
PATIENCE = 600  # seconds for anything to come to its end
LONGEST = 4.0  # seconds into a job at which it is ended at the latest


class Lost(AssertionError):
    """Bits differ, a process lives on, or a start was refused."""


class Pipeline:
    """One run of the recipe of `folder` under faults drawn from `rng`."""

    def __init__(self, folder: Path, stage: int, rng: random.Random) -> None:
        folder.mkdir(parents=True)
        self.recipe, self.folder, self.stage, self.rng = make_world(folder), folder, stage, rng
        self.workdir = folder / "run"

    def start(self) -> psutil.Popen:
        command = [sys.executable, "-m", "ds_minimodel", "run", self.recipe, "finetune.seeds=1"]
        command += ["--ranks", "2", "--zero", str(self.stage)]
        with open(self.folder / "log", "ab") as log:
            return psutil.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def finish(self) -> None:
        """Run to the end without a fault."""
        process = self.start()
        if code := process.wait(PATIENCE):
            raise Lost(f"exit code {code} of a run that nobody disturbed: {self.log()}")

    def end_somewhere(self, kill: str) -> str | None:
        """Start the run and end it; the step that was ended, None where the run was complete before."""
        process, began = self.start(), set(self._unfinished())
        # A moment in the first job that this life works on, or in one after it: so all steps have their turn.
        skip, pause = self.rng.choice((0, 0, 0, 1, 1, 2, 4)), self.rng.uniform(0, LONGEST)
        if not self.workdir.exists():  # tokenizers and token stores take no time here: one of them, at once
            skip, pause = self.rng.randrange(4), 0.0
        seen: set[str] = set()
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and len(seen) <= skip:
            seen |= {job for job in self._unfinished() if job not in began or self._is_training(process)}
            if time.monotonic() > deadline:
                raise Lost(f"nothing began within {PATIENCE} s: {self.log()}")
            time.sleep(0.01)
        until = time.monotonic() + pause
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        family = _family(process)
        victims = self._victims(process, family, kill)
        if not victims:  # it is complete, or between two launchers
            if process.poll() is None:
                _send([process, *family], signal.SIGKILL)
                process.wait(PATIENCE)
                return ""
            if process.returncode:
                raise Lost(f"exit code {process.returncode} before any fault: {self.log()}")
            return None
        step = next((job.split("/")[0] for job in self._unfinished()), "between jobs")
        _send(victims, KILLS[kill][1])
        try:
            code = process.wait(PATIENCE)
        except psutil.TimeoutExpired:
            raise Lost(f"{kill} in {step}: no end after {PATIENCE} s: {self.log()}") from None
        _, alive = psutil.wait_procs(family, PATIENCE)
        if alive:
            raise Lost(f"{kill} in {step}: {alive} live on: {self.log()}")
        if code == 2 or (code == 0 and KILLS[kill][1] == signal.SIGKILL and not self._is_complete()):
            raise Lost(f"{kill} in {step}: exit code {code}: {self.log()}")
        return step

    def _victims(self, process: psutil.Popen, family: list[psutil.Process], kill: str) -> list[psutil.Process]:
        match KILLS[kill][0]:
            case "command":
                return [process] if process.poll() is None else []
            case "all":
                return [process, *family] if process.poll() is None else []
            case "launcher":
                return [one for one in family if LAUNCHER in _command(one)]
        ranks = [one for one in family if any(word.startswith("--local_rank") for word in _command(one))]
        return [self.rng.choice(ranks)] if ranks else []

    def _is_training(self, process: psutil.Popen) -> bool:
        """Whether ranks have started since this life began: what was unfinished before is worked on again."""
        return any("--local_rank" in " ".join(_command(one)) for one in _family(process))

    def _unfinished(self) -> list[str]:
        """Names of the jobs that have begun and are not complete."""
        found = []
        for folder, _, files in os.walk(self.workdir):  # which does not mind what goes meanwhile
            for path in (Path(folder, name) for name in files if name.endswith(".job.json")):
                with contextlib.suppress(OSError):
                    if not json.loads(path.read_text())["complete"]:
                        found.append(str(path.relative_to(self.workdir)).removesuffix(".job.json"))
        return sorted(found)

    def _is_complete(self) -> bool:
        return (self.workdir / "report/report.html").exists()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]


def _family(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def left(workdir: Path) -> dict[str, str]:
    """{file: hash or text} of all that a run is for, its report included."""
    report = {f"report/{name}": (workdir / "report" / name).read_text() for name in ("scores.json", "report.md")}
    return results(workdir) | report


def disturb(folder: Path, stage: int, kills: int, rng: random.Random, faults: collections.Counter) -> None:
    """`kills` kills of runs at one ZeRO stage; Lost for anything that is not as of an undisturbed run."""
    whole = Pipeline(folder / "whole", stage, rng)
    whole.finish()
    expected = left(whole.workdir)
    done, number = 0, 0
    while done < kills:
        number += 1
        disturbed = Pipeline(folder / f"disturbed-{number}", stage, rng)
        while done < kills:
            kill = rng.choice(list(KILLS))
            step = disturbed.end_somewhere(kill)
            if step is None:
                break
            if step:
                faults[step, kill] += 1
                done += 1
                print(f"ZeRO {stage}: {kill} in {step}", flush=True)
        disturbed.finish()
        found = left(disturbed.workdir)
        other = sorted(file for file in found.keys() | expected.keys() if found.get(file) != expected.get(file))
        if other:
            raise Lost(f"ZeRO {stage}: other bits in {other}; kept at {disturbed.folder}")
        litter = [path for pattern in ("*.tmp*", "*.partial") for path in disturbed.workdir.rglob(pattern)]
        if litter:
            raise Lost(f"ZeRO {stage}: left lying: {litter}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")
    began, lost = time.monotonic(), []
    faults: dict[int, collections.Counter] = {stage: collections.Counter() for stage in range(4)}
    with tempfile.TemporaryDirectory() as folder:
        for stage, counts in faults.items():
            share = options.kills * (stage + 1) // 4 - options.kills * stage // 4
            try:
                disturb(Path(folder) / str(stage), stage, share, random.Random(f"{options.seed} {stage}"), counts)
            except Lost as loss:
                lost.append(str(loss))
                print(loss, file=sys.stderr, flush=True)
    counted = {
        "kills": sum(counts.total() for counts in faults.values()),
        "losses": len(lost),
        "lost": lost,
        "by step": dict(_totals((step, count) for counts in faults.values() for (step, _), count in counts.items())),
        "by fault": dict(_totals((kill, count) for counts in faults.values() for (_, kill), count in counts.items())),
        "by stage": {f"ZeRO {stage}": counts.total() for stage, counts in faults.items()},
    }
    arguments = f"--pipelines {options.kills} {options.seed}"
    print(write_report(options.report, counted, options.seed, began, arguments))
    return 1 if lost else 0


def _totals(pairs: Iterable[tuple[str, int]]) -> collections.Counter[str]:
    totals: collections.Counter[str] = collections.Counter()
    for name, count in pairs:
        totals[name] += count
    return totals


if __name__ == "__main__":
    sys.exit(main())
