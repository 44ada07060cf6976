"""Contestants, each in processes of its own, timed in turns: the one way in which this package
compares.
"""

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import training
from ds_minimodel.launch.hosts import CPU, has_gpu

ROOT = Path(__file__).resolve().parents[1]


class Failed(Exception):  # noqa: N818, as subprocess has none
    """A contestant's process ended or was silent for too long; the message holds the end of what it
    said.
    """


class Contestant:
    """The processes of one contestant, one for each rank.

    settings: environment variables instead of the package's own settings for a CPU. time_limit:
    seconds of an answer.
    """

    def __init__(
        self,
        name: str,
        threads: int = 1,
        ranks: int = 1,
        settings: Mapping[str, str] = CPU,
        time_limit: float = 600,
    ) -> None:
        self.name = name
        self.time_limit = time_limit
        handle, self.log = tempfile.mkstemp(prefix=f"benchmark-{name}-", suffix=".log")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        if not has_gpu():
            for setting in CPU:
                environment.pop(setting, None)
            environment |= {**settings, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(threads)}
        if name == "reference":
            environment["DSMM_OPS"] = "reference"
        if ranks > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))  # a free port
                environment |= {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(probe.getsockname()[1]),
                }
            environment |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        with os.fdopen(handle, "w") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.worker", str(threads)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment
                    | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
                )
                for rank in range(ranks)
            ]

    def ask(self, function: Callable[..., Any], **named: object) -> list[Any]:
        """Call a function of this package in all processes; return what it gives there, by rank."""
        line = json.dumps([function.__module__, function.__name__, named]) + "\n"
        clock = threading.Timer(self.time_limit, self.kill)
        clock.start()
        start = time.monotonic()
        try:
            for process in self.processes:
                assert process.stdin
                process.stdin.write(line)
                process.stdin.flush()
            answers = [process.stdout.readline() for process in self.processes if process.stdout]
        except BrokenPipeError:
            answers = [""]
        finally:
            clock.cancel()
        if all(answers):
            return [json.loads(answer) for answer in answers]
        raise Failed(f"{self.name}: {self._why(answers.index(''), time.monotonic() - start)}")

    def _why(self, rank: int, seconds: float) -> str:
        """Why a rank has not answered within so many seconds; all end."""
        code = 0
        with contextlib.suppress(
            subprocess.TimeoutExpired
        ):  # the end of its output comes a little before its own
            code = self.processes[rank].wait(5)
        self.kill()
        if seconds >= self.time_limit:
            return f"no answer within {self.time_limit:g} seconds (--time-limit)"
        if code < 0:
            return f"ended by {signal.Signals(-code).name}" + " (out of memory?)" * (
                -code == signal.SIGKILL
            )
        said = Path(self.log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1] if said else f"ended with code {code} and no word"

    def kill(self) -> None:
        """Kill the processes, without waiting for their end."""
        for process in self.processes:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for process in self.processes:
            process.communicate()
        Path(self.log).unlink()


def time_in_turns(
    contestants: Mapping[Any, Contestant],
    works: Mapping[Any, Mapping[str, object]],
    repeats: int,
    clock: str,
    between: Callable[[], object] = lambda: None,
) -> dict[Any, dict[str, Any]]:
    """Seconds of a training step of each contestant: {key: summary or {"error"}}.

    works: arguments of training.start for each key. In every repeat each contestant takes its turn,
    and `between` is called once. A turn is two steps, of which the second is timed: in training no
    step comes after half a minute in which others used the machine. A contestant that fails takes
    no further part. The summary has tokens and FLOPs of a step of all ranks, too.
    """
    found: dict[Any, dict[str, Any]] = {}
    answers: dict[Any, list[list[dict[str, float]]]] = {key: [] for key in contestants}

    def ask(key: Any, function: Callable[..., Any], **named: object) -> list[Any] | None:
        try:
            return contestants[key].ask(function, **named) if key not in found else None
        except Failed as failure:
            found[key] = {"error": str(failure)}
            return None

    def start(key: Any) -> None:
        ask(key, training.start, **works[key])
        ask(key, training.take_steps, count=2, clock=clock)  # to warm up

    with ThreadPoolExecutor(
        os.cpu_count()
    ) as pool:  # most of a start is waiting for disks and imports
        list(pool.map(start, contestants))
    for _ in range(repeats):
        between()
        for key in contestants:
            answers[key].append(ask(key, training.take_steps, count=2, clock=clock) or [])
    for key in contestants:
        sizes = ask(key, training.sizes)
        if sizes:
            found[key] = summary(answers[key]) | {
                "memory_bytes": max(rank["memory_bytes"] for rank in sizes),
                **{name: sum(rank[name] for rank in sizes) for name in ("tokens", "flops")},
            }
    return {key: found[key] for key in contestants}


def summary(turns: list[list[dict[str, float]]]) -> dict[str, float]:
    """Seconds of a step, of the slowest rank in each turn: median, fastest, slowest; and the last
    loss.
    """
    seconds = [max(rank["seconds"] for rank in turn) for turn in turns]
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "loss": turns[-1][0]["loss"],
    }
