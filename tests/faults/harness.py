"""Disturbs training at random and counts what is lost: must be nothing.

Every trial starts a small run again and again on one rank or several, ends it by SIGKILL or SIGTERM at random
moments or in the middle of a save, damages its checkpoints in between, and at last lets it finish. The weights
must be those of an undisturbed run, bit for bit; each damage must be named; each start must be from the newest
good state.

Usage: harness.py --minutes 15 --report runs/faults.json [--seed N]
"""

import argparse
import collections
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from damage import DAMAGES, complete, is_good
from worker import weights_hash, work

PRELOAD = ["deepspeed.runtime.zero.muon.original_muon", "torch.utils.tensorboard", "ds_minimodel.engine.loop"]
STEPS, SAVE_EVERY, TIMEOUT = 30, 2, 1200
LIVES = 3  # times that a trial's run is ended before it may finish


class Lost(AssertionError):
    """Work was lost, or damage not named."""


class Trial:
    """One run in `folder` under faults drawn from `rng`."""

    def __init__(self, context, folder, rng, ranks, run, faults):
        self.context, self.folder, self.rng = context, folder, rng
        self.ranks, self.run, self.faults = ranks, run, faults
        self.checkpoints = folder / "run" / "checkpoints"
        folder.mkdir(parents=True)

    def live_and_die(self):
        """Start the ranks and end them by a fault; then perhaps damage what is on disk."""
        fault = self.rng.choice(
            ["kill", "kill in a save", "SIGTERM"]
            + (["kill one rank", "kill one rank in a save"] if self.ranks > 1 else [])
        )
        expected, damaged = self._expect()
        processes = self._start()
        if "save" in fault:
            self._wait_for_a_save(processes)
        else:
            time.sleep(self.rng.uniform(0, 2.5))
        if any(process.is_alive() for process in processes):
            self.faults[fault] += 1
        victims = [self.rng.choice(processes)] if "one rank" in fault else processes
        for process in victims:
            if process.is_alive():
                os.kill(process.pid, signal.SIGTERM if fault == "SIGTERM" else signal.SIGKILL)
        codes = self._join(processes, patience=TIMEOUT if fault == "SIGTERM" else 1)
        self._check_start(expected, damaged)
        # A rank that is not yet training dies of the signal, and the others of its absence.
        if fault == "SIGTERM" and -signal.SIGTERM not in codes and not set(codes) <= {0, 3}:
            raise Lost(f"exit codes {codes} after SIGTERM: {self._log()}")
        if self.rng.random() < 0.5:
            self._damage()

    def finish(self, ranks=None, run=None):
        """Let the run end; where no good state is left, do as the message says. Returns the weights' file."""
        self.ranks, self.run = ranks or self.ranks, run or self.run
        expected, damaged = self._expect()
        codes = self._join(self._start(), TIMEOUT)
        self._check_start(expected, damaged)
        if set(codes) != {0}:
            raise Lost(f"exit codes {codes}: {self._log()}")
        return self.folder / "weights-0.pt"

    def _expect(self):
        """(step to go on from, names of damaged checkpoints to be named on the way), found independently.

        Where checkpoints are there and none is good, the run must say so and end; then they are deleted.
        """
        (self.folder / "log").unlink(missing_ok=True)
        (self.folder / "start").unlink(missing_ok=True)
        found = complete(self.checkpoints)
        good = [path for path in found if is_good(path)]
        latest = self.checkpoints / "latest"
        pointed = latest.read_text(errors="replace") if latest.exists() else ""
        damaged = [path.name for path in found if not good or path > good[0]]
        if (found or pointed.startswith("step-")) and not good:
            codes = self._join(self._start(), TIMEOUT)
            log = self._log()
            named = all(name in log for name in damaged) and "no checkpoint is left" in log
            if set(codes) != {2} or not named:
                raise Lost(f"nothing good was left, and it ended with {codes}: {log}")
            self.faults["(all checkpoints damaged, and it said so)"] += 1
            shutil.rmtree(self.checkpoints)
            return 0, []
        return (int(good[0].name.removeprefix("step-")) if good else 0), damaged

    def _check_start(self, expected, damaged):
        log = self._log()
        start = self.folder / "start"
        if start.exists() and int(start.read_text()) != expected:
            raise Lost(f"went on from step {start.read_text()}, but {expected} is good: {log}")
        if start.exists() and any(
            f"passing over a damaged checkpoint: {self.checkpoints / name}" not in log for name in damaged
        ):
            raise Lost(f"damaged {damaged} not named: {log}")

    def _damage(self):
        newest = complete(self.checkpoints)[: self.rng.choice([1, 1, 1, 2])]
        for checkpoint in filter(is_good, newest):
            file = self.rng.choice(sorted(path for path in checkpoint.iterdir() if path.stat().st_size))
            kind = self.rng.choice(sorted(DAMAGES))
            DAMAGES[kind](file, self.rng)
            if is_good(checkpoint):  # a bit that means nothing, in the manifest's spaces or facts
                kind += " that says nothing"
            self.faults[kind] += 1
        if self.rng.random() < 0.1:
            (self.checkpoints / "latest").unlink(missing_ok=True)
            self.faults["deleted latest"] += 1

    def _start(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        processes = [
            self.context.Process(target=work, args=(self.folder, rank, self.ranks, port, self.run))
            for rank in range(self.ranks)
        ]
        for process in processes:
            process.start()
        return processes

    def _wait_for_a_save(self, processes):
        """Until a random save from now on is under way."""
        skip, seen, deadline = self.rng.randrange(6), set(), time.monotonic() + 10
        while time.monotonic() < deadline and all(process.is_alive() for process in processes):
            seen |= {path.name for path in self.checkpoints.glob("*.partial")}
            if len(seen) > skip:
                time.sleep(self.rng.uniform(0, 0.02))
                return
            time.sleep(0.0005)

    def _join(self, processes, patience):
        """Exit codes; ranks that are left after `patience` seconds are killed, as the launcher does."""
        deadline = time.monotonic() + patience
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for process in processes]

    def _log(self):
        log = self.folder / "log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""


class Harness:
    """Draws trials, and keeps the weights of undisturbed runs to compare with."""

    def __init__(self, folder, seed):
        self.folder, self.rng = Path(folder), random.Random(seed)
        os.environ.update(OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu")  # before the server loads torch
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.faults, self.trials, self.lost, self.undisturbed = collections.Counter(), 0, [], {}

    def trial(self, ranks, stage, precision):
        """One trial; what it loses is added to `lost`."""
        run = {
            "steps": STEPS,
            "checkpoint_every": SAVE_EVERY,
            "keep_last": 3,
            "zero_stage": stage,
            "precision": precision,
            "phases": ((STEPS, 1e9, 2e9),),
        }
        expected = self._undisturbed(ranks, run)
        trial = Trial(self.context, self.folder / f"trial-{self.trials}", self.rng, ranks, run, self.faults)
        self.trials += 1
        try:
            for _ in range(self.rng.randint(1, LIVES)):
                trial.live_and_die()
            if precision == "fp32" and self.rng.random() < 0.25:
                self._finish_elsewhere(trial, run, expected)
            elif weights_hash(trial.finish()) != weights_hash(expected):
                raise Lost("other weights than those of the undisturbed run")
        except Lost as loss:
            self.lost.append(f"trial {self.trials} ({ranks} ranks, ZeRO {stage}, {precision}): {loss}")
        else:
            shutil.rmtree(trial.folder)

    def _finish_elsewhere(self, trial, run, expected):
        """On another number of ranks at another stage: the same weights within rounding."""
        import torch

        self.faults["(went on with other ranks and stage)"] += 1
        weights = trial.finish(
            3 - trial.ranks if trial.ranks < 3 else 2, {**run, "zero_stage": self.rng.choice([0, 1, 2, 3])}
        )
        found, wanted = (torch.load(path, weights_only=True) for path in (weights, expected))
        # Adam divides by the root of tiny second moments: rounding is seen at the scale of lr, 1e-2 here.
        if any((found[name] - wanted[name]).abs().max() > 5e-3 for name in wanted):
            raise Lost("other weights than those of the undisturbed run, by more than rounding")

    def _undisturbed(self, ranks, run):
        key = ranks, run["zero_stage"], run["precision"]
        if key not in self.undisturbed:
            folder = self.folder / "undisturbed-{}-{}-{}".format(*key)
            trial = Trial(self.context, folder, self.rng, ranks, {**run, "checkpoint_every": 10**6}, {})
            self.undisturbed[key] = trial.finish()
        return self.undisturbed[key]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(folder, options.seed)
        while time.monotonic() - began < options.minutes * 60:
            harness.trial(
                harness.rng.choice([1, 1, 2, 2, 4]),
                harness.rng.choice([0, 1, 2, 3]),
                harness.rng.choice(["fp32", "bf16"]),
            )
            report = {
                "trials": harness.trials,
                "faults": dict(sorted(harness.faults.items())),
                "losses": len(harness.lost),
                "lost": harness.lost,
                "minutes": round((time.monotonic() - began) / 60, 1),
                "device": f"CPU, {os.cpu_count()} cores",
                "date": time.strftime("%Y-%m-%d"),
                "command": f"bash scripts/faults.sh {options.minutes:g} {options.seed}",
            }
            options.report.write_text(json.dumps(report, indent=1) + "\n")
    print(options.report.read_text())
    sys.exit(1 if harness.lost else 0)


if __name__ == "__main__":
    main()
