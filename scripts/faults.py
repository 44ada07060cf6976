"""Disturbs training at random and counts what is lost: must be nothing.

Every trial starts a small run again and again on one rank or several, ends it by SIGKILL or SIGTERM
at random moments or in the middle of a save, damages its checkpoints in between, and at last lets
it finish. The weights must be those of an undisturbed run, bit for bit; each damage must be named;
each start must be from the newest good state.

Usage: faults.py [MINUTES [SEED]]
"""

import collections
import hashlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
# The ranks import this module too, and what it trains.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "training"), str(ROOT / "scripts")]

from tests.forks import Fork, start_ranks
from tests.helpers.files import read_json

STEPS = 30
SAVE_EVERY = 2
TIMEOUT = 1200
LIVES = 3  # times that a trial's run is ended before it may finish
DAMAGES = {
    "truncated file": lambda content, rng: content[: rng.randrange(len(content))],
    "flipped bit": lambda content, rng: flipped(
        content, rng.randrange(len(content)), rng.randrange(8)
    ),
    "deleted file": None,
}


def flipped(content: bytes, index: int, bit: int) -> bytes:
    changed = bytes([content[index] ^ 1 << bit])
    return content[:index] + changed + content[index + 1 :]


def work(folder: Path, changes: dict[str, Any]) -> None:
    """Train as one rank to the end; exit code 0 done, 3 stopped by a signal, 1 a crash.

    folder/start gets the step that it went on from, folder/weights-RANK.safetensors what came out.
    """
    from safetensors.torch import save_file
    from synthetic import resume, run_config

    from ds_minimodel.launch.process import Stopped
    from ds_minimodel.training.checkpoints.checkpoints import Checkpoints
    from ds_minimodel.training.world import join_ranks

    load_newest = Checkpoints.load_newest

    def load_and_tell(self: Checkpoints) -> int:
        step = load_newest(self)
        if self.world.is_main:
            (folder / "start").write_text(str(step))
        return step

    try:
        with mock.patch.object(Checkpoints, "load_newest", load_and_tell):
            world = join_ranks()
            save_file(
                resume(world, folder / "run", run_config(**changes)),
                folder / f"weights-{world.rank}.safetensors",
            )
    except Stopped:
        sys.exit(3)


def is_good(checkpoint: Path) -> bool:
    """Whether every file has the hash that the manifest gives, told without the code under test."""
    try:
        manifest = read_json(checkpoint / "manifest.json")
        expected = manifest.pop("manifest_sha256")
        text = json.dumps(manifest, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest() == expected and all(
            hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() == facts["sha256"]
            for name, facts in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


class Trial:
    """One run in `folder` under faults drawn from `rng`."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        ranks: int,
        run: dict[str, Any],
        faults: collections.Counter[str],
    ) -> None:
        self.folder = folder
        self.rng = rng
        self.ranks = ranks
        self.run = run
        self.faults = faults
        self.log = ""  # of the last start
        self.checkpoints = folder / "run" / "checkpoints"
        folder.mkdir(parents=True)

    def live_and_die(self) -> None:
        """Start the ranks and end them by a fault; then perhaps damage what is on disk."""
        of_one = ["kill one rank", "kill one rank in a save"] if self.ranks > 1 else []
        fault = self.rng.choice(["kill", "kill in a save", "SIGTERM", *of_one])
        expected, damaged = self._expect()
        processes = start_ranks(self.ranks, "faults:work", self.folder, self.run)
        if "save" in fault:
            self._wait_for_a_save(processes)
        else:
            time.sleep(self.rng.uniform(0, 2.5))
        if any(process.poll() is None for process in processes):
            self.faults[fault] += 1
        victims = [self.rng.choice(processes)] if "one rank" in fault else processes
        for process in victims:
            process.send_signal(signal.SIGTERM if fault == "SIGTERM" else signal.SIGKILL)
        codes = self._join(processes, patience=TIMEOUT if fault == "SIGTERM" else 1)
        self._check_start(expected, damaged)
        # A rank that is not yet training dies of the signal, and the others of its absence.
        if fault == "SIGTERM":
            assert -signal.SIGTERM in codes or set(codes) <= {0, 3}, (
                f"exit codes {codes} after SIGTERM: {self.log}"
            )
        if self.rng.random() < 0.5:
            self._damage()

    def finish(self) -> bytes:
        """Let the run end; the bytes of its weights."""
        expected, damaged = self._expect()
        codes = self._join(start_ranks(self.ranks, "faults:work", self.folder, self.run), TIMEOUT)
        self._check_start(expected, damaged)
        assert set(codes) == {0}, f"exit codes {codes}: {self.log}"
        return (self.folder / "weights-0.safetensors").read_bytes()

    def _expect(self) -> tuple[int, list[str]]:
        """(step to go on from, names of damaged checkpoints to be named on the way), found
        independently.
        """
        (self.folder / "start").unlink(missing_ok=True)
        found, good = self._complete()
        damaged = [path.name for path in found if path > good[0]] if good else []
        return (int(good[0].name.removeprefix("step-")) if good else 0), damaged

    def _complete(self) -> tuple[list[Path], list[Path]]:
        """(folders of the complete checkpoints, the newest first, those of them that are good)"""
        found = sorted(
            (path for path in self.checkpoints.glob("step-*") if path.suffix != ".partial"),
            reverse=True,
        )
        return found, [path for path in found if is_good(path)]

    def _check_start(self, expected: int, damaged: list[str]) -> None:
        start = self.folder / "start"
        if not start.exists():
            return
        assert int(start.read_text()) == expected, (
            f"from step {start.read_text()}, {expected} is good: {self.log}"
        )
        for name in damaged:
            assert f"passing over a damaged checkpoint: {self.checkpoints / name}" in self.log, (
                self.log
            )

    def _damage(self) -> None:
        """One or two of the good ones, the newest first, but never the oldest, which the run goes
        on from.
        """
        _, good = self._complete()
        for checkpoint in good[:-1][: self.rng.choice([1, 2])]:
            file = self.rng.choice(
                sorted(path for path in checkpoint.iterdir() if path.stat().st_size)
            )
            kind = self.rng.choice(sorted(DAMAGES))
            damage = DAMAGES[kind]
            if damage:
                file.write_bytes(damage(file.read_bytes(), self.rng))
            else:
                file.unlink()
            self.faults[kind] += 1

    def _wait_for_a_save(self, processes: list[Fork]) -> None:
        """Until a random save from now on is under way."""
        skip = self.rng.randrange(6)
        seen = set()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and all(process.poll() is None for process in processes):
            seen |= {path.name for path in self.checkpoints.glob("*.partial")}
            if len(seen) > skip:
                time.sleep(self.rng.uniform(0, 0.02))
                return
            time.sleep(0.0005)

    def _join(self, processes: list[Fork], patience: float) -> list[int]:
        """Exit codes; ranks that are left after `patience` seconds are killed, as the launcher
        does.
        """
        deadline = time.monotonic() + patience
        while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        for process in processes:
            process.send_signal(signal.SIGKILL)
        self.log = "".join(process.communicate()[1] for process in processes)[-3000:]
        return [process.returncode for process in processes]


class Harness:
    """Draws trials, and keeps the weights of undisturbed runs to compare with."""

    def __init__(self, folder: str | Path, seed: int) -> None:
        self.folder = Path(folder)
        self.rng = random.Random(seed)
        self.faults: collections.Counter[str] = collections.Counter()
        self.trials = 0
        self.lost: list[str] = []
        self.undisturbed: dict[str, bytes] = {}

    def trial(self, ranks: int, stage: int, precision: str) -> None:
        """One trial; what it loses is added to `lost`."""
        what = f"{ranks} ranks, ZeRO {stage}, {precision}"
        run = {"steps": STEPS, "zero_stage": stage, "precision": precision}
        if what not in self.undisturbed:
            self.undisturbed[what] = Trial(
                self.folder / what, self.rng, ranks, run, collections.Counter()
            ).finish()
        self.trials += 1
        run |= {"checkpoint_every": SAVE_EVERY, "keep_last": 3}
        trial = Trial(self.folder / f"trial-{self.trials}", self.rng, ranks, run, self.faults)
        try:
            for _ in range(self.rng.randint(1, LIVES)):
                trial.live_and_die()
            assert trial.finish() == self.undisturbed[what], (
                "other weights than those of the undisturbed run"
            )
        except AssertionError as loss:
            self.lost.append(f"trial {self.trials} ({what}): {loss}")
        else:
            shutil.rmtree(trial.folder)


def main(minutes: float | str = 15, seed: int | str = 1) -> None:
    end = time.monotonic() + 60 * float(minutes)
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(folder, int(seed))
        draw = harness.rng.choice
        while time.monotonic() < end:
            harness.trial(draw([1, 1, 2, 2, 4]), draw([0, 1, 2, 3]), draw(["fp32", "bf16"]))
    print(
        f"{harness.trials} trials, {len(harness.lost)} lost: {dict(sorted(harness.faults.items()))}"
    )
    sys.exit("\n".join(harness.lost) or 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
