"""Training loss and time of one run, out of its metrics.jsonl.

A loss row is {"system", "stage", "language", "final", "curve"}: stage is the pipeline's step ("pretrain",
"build-mini", "adapt"), `final` the mean loss over the end of training, `curve` a list of [EFLOPs, loss]. Where the
log holds rates it has "seconds" too, the time that the steps took, and "usual_seconds", the time that they would
have taken at the median rate: what a machine that stood still for a while does not change.
"""

import itertools
import math
import statistics
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict  # typing's is none that pydantic reads before Python 3.12

from ds_minimodel.common.files import Amount, Count, Stored, read_model_lines

LAST_SHARE = 0.05  # share of a run over which its final loss is averaged
NUM_STRETCHES = 120  # points of a curve: means of so many stretches of the run, without single steps' noise


class LossRow(TypedDict):
    """Loss of one training run, as above."""

    system: str
    stage: str
    language: str
    final: float
    curve: list[list[float]]
    seconds: NotRequired[Amount]
    usual_seconds: NotRequired[Amount]


class LossRecord(Stored):
    """A line of metrics.jsonl; of before, some hold no loss."""

    step: Count
    eflops: Amount = 0.0
    loss: Amount | None = None
    tflops_per_second: Amount | None = None


def read_losses(path: Path, system: str, stage: str, language: str) -> LossRow | None:
    """Loss row of one run, or None where nothing was logged.

    A run that was killed and resumed writes some steps again: the last record of a step counts. Records that
    hold no loss are passed over.
    """
    advice = "put it back from a copy, or delete it: nothing but the report reads it"
    lines = read_model_lines(path, LossRecord, advice)
    records = {record.step: record for record in lines if record.loss is not None}
    by_step = {step: (record.eflops, record.loss) for step, record in records.items() if record.loss is not None}
    if not by_step:
        return None
    steps = sorted(by_step)
    start = (1 - LAST_SHARE) * steps[-1]
    final = statistics.fmean(by_step[step][1] for step in steps if step >= start)
    row: LossRow = {
        "system": system,
        "stage": stage,
        "language": language,
        "final": final,
        "curve": _stretches([by_step[step] for step in steps]),
    }
    rates = [records[step].tflops_per_second for step in steps]
    if all(rates):
        eflops = [0.0, *(records[step].eflops for step in steps)]
        spent = [1e6 * (after - before) for before, after in itertools.pairwise(eflops)]  # TFLOPs
        row["seconds"] = sum(tflops / rate for tflops, rate in zip(spent, rates, strict=True) if rate)
        row["usual_seconds"] = sum(spent) / statistics.median(rate for rate in rates if rate)
    return row


def _stretches(points: list[tuple[float, float]]) -> list[list[float]]:
    """Means of consecutive stretches of (x, y) points."""
    size = math.ceil(len(points) / NUM_STRETCHES)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [[statistics.fmean(axis) for axis in zip(*stretch, strict=True)] for stretch in stretches]
