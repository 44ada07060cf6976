"""How long a save keeps training waiting: written at once, as DeepSpeed does, against in the
background.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.device import synchronize
from benchmarks.processes import Contestant, Failed
from benchmarks.record import table
from ds_minimodel.report.render import Table

if TYPE_CHECKING:
    import deepspeed

PAGE = """How long a save keeps training waiting
One linear map at ZeRO stage 1 in bf16; saves that are written at once and in the background take
turns, with steps before, between and beside them. Medians by the clock; a step at once waits for
the disk (fsync)."""

TIMES = {
    "at_once": "written at once, s",
    "background": "in the background, s",
    "until_on_disk": "until on disk, s",
    "plain_step": "a step, s",
    "steps_beside": "a step beside, s",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    sizes = [1e6, 4e6, 16e6]
    parser.add_argument(
        "--parameters", nargs="+", type=float, default=sizes, help="default: 1e6 4e6 16e6"
    )
    parser.add_argument(
        "--folder", help="where checkpoints are written for a while; default: TMPDIR"
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each size of a model."""
    for parameters in options.parameters:
        with tempfile.TemporaryDirectory(prefix="saves-", dir=options.folder) as folder:
            try:
                with Contestant("saves", time_limit=options.time_limit) as contestant:
                    width = round(parameters**0.5)
                    (row,) = contestant.ask(
                        time_saves, folder=folder, width=width, rounds=options.repeats
                    )
            except Failed as failure:
                row = {"name": f"{parameters:g} parameters", "error": str(failure)}
        yield row


def time_saves(folder: str, width: int, rounds: int) -> dict[str, Any]:
    """Parameters and bytes of a square map, and the median seconds of each of TIMES."""
    from ds_minimodel.training.checkpoints.checkpoints import Checkpoints
    from ds_minimodel.training.config import AdamWConfig, CheckpointPolicy, Schedule
    from ds_minimodel.training.run import Accounting, Execution, Run
    from ds_minimodel.training.world import join_ranks
    from ds_minimodel.training.zero.engine import build_engine

    world = join_ranks()
    run = Run(
        Schedule(steps=1000, lr=1e-4),
        Execution(batch_size=8, micro_batch_size=8, zero_stage=1, precision="bf16"),
        Accounting(tokens_per_step=1),
        AdamWConfig(weight_decay=0.0),
        CheckpointPolicy(every=1, keep_last=1),
    )
    engine = build_engine(torch.nn.Linear(width, width, bias=False).to(world.device), run, world)
    batch = torch.randn(8, width, dtype=torch.bfloat16, device=world.device)
    step = partial(take_step, engine, batch)
    plain = engine.checkpoint_engine
    times: dict[str, list[float]] = {key: [] for key in TIMES}
    with Checkpoints(engine, Path(folder), run, world, "saves") as checkpoints:
        copies = engine.checkpoint_engine
        for _ in range(3):
            step()
        for number in range(1, rounds + 1):
            times["plain_step"] += [seconds(step) for _ in range(3)]
            engine.checkpoint_engine = plain
            times["at_once"].append(seconds(partial(save_at_once, engine, Path(folder, "plain"))))
            engine.checkpoint_engine = copies
            begin = time.monotonic()
            times["background"].append(seconds(partial(checkpoints.save, number)))
            while checkpoints.thread is not None and checkpoints.thread.is_alive():
                times["steps_beside"].append(seconds(step))
            checkpoints.wait()
            times["until_on_disk"].append(time.monotonic() - begin)
    return {
        "parameters": width * width,
        "bytes": sum(path.stat().st_size for path in Path(folder).glob("step-*/*.pt")),
        **{key: round(statistics.median(values), 4) for key, values in times.items() if values},
    }


def take_step(engine: "deepspeed.DeepSpeedEngine", batch: torch.Tensor) -> None:
    engine.backward(engine(batch).float().square().mean())
    engine.step()
    synchronize()


def save_at_once(engine: "deepspeed.DeepSpeedEngine", folder: Path) -> None:
    engine.save_checkpoint(folder, tag="plain")
    for path in folder.rglob("*.pt"):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def seconds(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    lines = [
        [
            f"{row['parameters']:,}",
            f"{row['bytes'] / 2**20:.0f}",
            *(f"{row[key]:.3f}" if key in row else "" for key in TIMES),
        ]
        for row in rows
    ]
    return [table("Seconds", ["parameters", "MiB", *TIMES.values()], lines)]
