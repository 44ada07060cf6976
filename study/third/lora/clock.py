"""Seconds that a step of `lora` and one of BL_BASE take on this machine, which does nothing else,
in turns (H5).

    python -m study.third.lora.clock FOLDER [TURNS]

FOLDER has texts.py's files and `base`. Adds a line of JSON to FOLDER/clock.jsonl.
"""

import json
import os
import sys
from datetime import date
from pathlib import Path

import torch

from benchmarks.device import device_name
from ds_minimodel.api import load_recipe
from ds_minimodel.costs.measure import measured_rows
from ds_minimodel.training.world import join_ranks
from study.third.cells import RECIPE, THIRD, Cell, Study

CELLS = [Cell("de", "bl_base", THIRD, 8e-3), Cell("de", "lora", THIRD, 4e-3)]


def main(turns: int) -> None:
    study, world = Study(Path.cwd(), 512), join_ranks()
    seconds: dict[str, list[float]] = {cell.system: [] for cell in CELLS}
    for cell in CELLS * turns:
        (row,) = measured_rows(load_recipe(RECIPE, cell.overrides(1000)), "adapt", world)
        seconds[cell.system].append(row["seconds"])
    facts = {
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    facts |= {
        "date": date.today().isoformat(),
        "eflops": {cell.system: study.flops(cell) for cell in CELLS},
    }
    with Path("clock.jsonl").open("a") as file:
        file.write(json.dumps({**facts, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 3)
