"""Contestants of one training step, each in processes of its own, timed in turns."""

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ds_minimodel.benchmark import IN_ENGINE
from ds_minimodel.benchmark.contestants import environment
from ds_minimodel.engine.ranks.launch import CPU, has_gpu
from ds_minimodel.engine.ranks.rendezvous import free_port


class Failed(Exception):
    """A contestant's process ended or fell silent; the message holds the end of what it said."""


class Contestant:
    """The processes of one contestant, one for each rank, and what they answered."""

    def __init__(self, name: str, task: dict, ranks: int, log_folder: Path, time_limit: float) -> None:
        self.name, self.time_limit = name, time_limit
        self.log = log_folder / f"{task.get('workload', 'all')}-{name}.log"
        base = dict(os.environ)
        if not has_gpu():
            for setting in CPU:
                base.pop(setting, None)
            base |= environment(name, CPU) | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(task["threads"])}
        else:
            base |= environment(name, {})
        if ranks > 1:
            base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-m", "ds_minimodel.benchmark.worker", json.dumps({**task, "contestant": name})]
        with open(self.log, "w", encoding="utf-8") as log:
            self.processes = [
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=base
                    | (
                        {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
                        if ranks > 1
                        else {}
                    ),
                )
                for rank in range(ranks)
            ]
        self._answers()

    def ask(self, command: str) -> list:
        """Give all ranks a command and return their answers."""
        try:
            for process in self.processes:
                assert process.stdin
                process.stdin.write(command + "\n")
                process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answers()

    def _answers(self) -> list:
        clock = threading.Timer(self.time_limit, self.kill)
        clock.start()
        try:
            lines = [process.stdout.readline() for process in self.processes if process.stdout]
        finally:
            clock.cancel()
        if not all(lines):
            raise self._failure()
        return [json.loads(line) for line in lines]

    def _failure(self) -> Failed:
        self.kill()
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Failed(f"{self.name}: {said[-1] if said else 'ended or ran past its time limit'} (see {self.log})")

    def kill(self) -> None:
        """Kill the processes, without waiting for their end."""
        for process in self.processes:
            process.kill()

    def end(self) -> None:
        """Kill the processes and wait for their end."""
        self.kill()
        for process in self.processes:
            process.wait()


def time_in_turns(
    names: Sequence[str],
    task: dict,
    ranks: int,
    repeats: int,
    log_folder: Path,
    time_limit: float,
    say: Callable[[str], object],
) -> tuple[dict[str, dict], dict[str, float]]:
    """Return ({contestant: summary or {"error"}}, {"matmul": FLOP/s, "copy": bytes a second} of the device).

    Every repeat lets each contestant take its turn, and measures the device's best matrix product and copy in
    between; medians over repeats. A turn is two steps, of which the second is timed: in training no step comes after
    half a minute in which others used the machine. `ranks` is for those that run in our engine. A contestant
    that fails takes no further part; Failed where the device cannot be measured.
    """
    found: dict[str, dict] = {}
    running: dict[str, Contestant] = {}
    answers: dict[str, list] = {}

    def ask(name: str, command: str) -> list | None:
        try:
            return running[name].ask(command)
        except Failed as failure:
            running.pop(name).end()
            found[name] = {"error": str(failure)}
            return None

    try:
        for name in ("peaks", *names):
            say(f"{task['workload']} {task['precision']}: {name} starts")
            try:
                running[name] = Contestant(name, task, ranks if name in IN_ENGINE else 1, log_folder, time_limit)
            except Failed as failure:
                found[name] = {"error": str(failure)}
                continue
            answers[name] = []
            if name != "peaks":
                ask(name, "step 2")  # to warm up
        for _ in range(repeats):
            for name in list(running):
                answers[name].append(ask(name, "peaks" if name == "peaks" else "step 2"))
        if "peaks" not in running:
            raise Failed(found["peaks"]["error"])
        for name in [name for name in running if name != "peaks"]:
            memory = ask(name, "memory")
            if memory:
                found[name] = summary(answers[name], memory)
    finally:
        for one in running.values():
            one.end()
    peaks = {key: statistics.median(answer[0][key] for answer in answers["peaks"]) for key in ("matmul", "copy")}
    return {name: found[name] for name in names}, peaks


def summary(answers: list, memory: list) -> dict[str, float]:
    """Seconds of a step (median, fastest, slowest), loss, bytes on the wire of rank 0, and peak memory of any rank."""
    seconds = [max(rank["seconds"][-1] for rank in answer) for answer in answers]
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "loss": answers[-1][0]["losses"][-1],
        "wire_bytes": answers[-1][0]["wire_bytes"],
        "memory_bytes": max(rank["memory"] for rank in memory),
    }


def time_kernels(op: str, task: dict, repeats: int, compiled: bool, log_folder: Path, time_limit: float) -> list[dict]:
    """Rows of kernels.measure for one operator, from a process of its own; Failed where it ends before."""
    worker = Contestant("kernels", task, 1, log_folder, time_limit)
    try:
        return worker.ask(f"kernels {op} {repeats} {compiled}")[0]
    finally:
        worker.end()
