"""How long a save keeps training waiting: written at once, as DeepSpeed does, against in the background.

Usage: python scripts/checkpoint_stall.py FOLDER [--parameters 100e6] [--report FILE]
Trains one linear map at ZeRO stage 1; saves of the two kinds are interleaved, medians are reported.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import torch

from ds_minimodel.common.files import write_json
from ds_minimodel.engine.checkpoints.checkpoints import Checkpoints
from ds_minimodel.engine.checkpoints.storage import CheckpointPolicy
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.ranks.world import join_ranks
from ds_minimodel.engine.run import Accounting, Optimizer, Run
from ds_minimodel.engine.schedule import Schedule
from ds_minimodel.engine.zero.engine import build_engine

ROUNDS = 5


def step(engine: deepspeed.DeepSpeedEngine, batch: torch.Tensor) -> None:
    loss = engine(batch).float().square().mean()
    engine.backward(loss)
    engine.step()
    if batch.is_cuda:
        torch.cuda.synchronize()


def seconds(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def save_at_once(engine: deepspeed.DeepSpeedEngine, folder: Path) -> None:
    engine.save_checkpoint(folder, tag="plain")
    for path in folder.rglob("*.pt"):
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    world, width = join_ranks(), round(options.parameters**0.5)
    run = Run(
        Schedule(steps=1000, lr=1e-4),
        Execution(batch_size=8, micro_batch_size=8, zero_stage=1, precision="bf16"),
        Accounting(tokens_per_step=1, phases=((1000, 1.0, 1.0),)),
        Optimizer(weight_decay=0.0),
        CheckpointPolicy(every=1, keep_last=1),
    )
    engine = build_engine(torch.nn.Linear(width, width, bias=False).to(world.device), run, world)
    batch = torch.randn(8, width, dtype=torch.bfloat16, device=world.device)
    plain = engine.checkpoint_engine
    times: dict[str, list[float]] = {
        key: [] for key in ("plain_step", "at_once", "background", "steps_beside", "until_on_disk")
    }
    with Checkpoints(engine, options.folder, run, world, "stall") as checkpoints:
        copies, number = engine.checkpoint_engine, 0
        for _ in range(3):
            step(engine, batch)
        for _ in range(ROUNDS):
            times["plain_step"] += [seconds(lambda: step(engine, batch)) for _ in range(3)]
            engine.checkpoint_engine = plain
            times["at_once"].append(seconds(lambda: save_at_once(engine, options.folder / "plain")))
            engine.checkpoint_engine, number = copies, number + 1
            begin = time.monotonic()
            times["background"].append(seconds(partial(checkpoints.save, number)))
            while checkpoints.thread is not None and checkpoints.thread.is_alive():
                times["steps_beside"].append(seconds(lambda: step(engine, batch)))
            checkpoints.wait()
            times["until_on_disk"].append(time.monotonic() - begin)
    report = {
        "trainable_parameters": width * width,
        "bytes": sum(path.stat().st_size for path in options.folder.glob("step-*/*.pt")),
        "median_seconds": {key: round(statistics.median(values), 4) for key, values in times.items()},
        "rounds": ROUNDS,
        "zero_stage": 1,
        "precision": "bf16",
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if batch.is_cuda else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python scripts/checkpoint_stall.py FOLDER --parameters {options.parameters:g}",
    }
    print(json.dumps(report, indent=1))
    if options.report:
        write_json(options.report, report)


if __name__ == "__main__":
    main()
