"""Training loss of one run, out of its metrics.jsonl.

A loss row is {"system", "stage", "language", "final", "curve"}: stage is the pipeline's step ("pretrain",
"build-mini", "adapt"), `final` the mean loss over the end of training, `curve` a list of [EFLOPs, loss].
"""

import math
import statistics
from pathlib import Path
from typing import TypedDict

from ds_minimodel.common.files import read_json_lines

LAST_SHARE = 0.05  # share of a run over which its final loss is averaged
NUM_STRETCHES = 120  # points of a curve: means of so many stretches of the run, without single steps' noise


class LossRow(TypedDict):
    """Loss of one training run, as above."""

    system: str
    stage: str
    language: str
    final: float
    curve: list[list[float]]


def read_losses(path: Path, system: str, stage: str, language: str) -> LossRow | None:
    """Loss row of one run, or None where nothing was logged.

    A run that was killed and resumed writes some steps again: the last record of a step counts. Records that
    hold no loss are passed over.
    """
    by_step = {record["step"]: record for record in read_json_lines(path) if "loss" in record}
    if not by_step:
        return None
    records = [by_step[step] for step in sorted(by_step)]
    start = (1 - LAST_SHARE) * records[-1]["step"]
    final = statistics.fmean(record["loss"] for record in records if record["step"] >= start)
    return {
        "system": system,
        "stage": stage,
        "language": language,
        "final": final,
        "curve": _stretches([(record["eflops"], record["loss"]) for record in records]),
    }


def _stretches(points: list[tuple[float, float]]) -> list[list[float]]:
    """Means of consecutive stretches of (x, y) points."""
    size = math.ceil(len(points) / NUM_STRETCHES)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [[statistics.fmean(axis) for axis in zip(*stretch, strict=True)] for stretch in stretches]
