"""Training loss and time of one run, and its scores on a development file, out of its metrics.jsonl.

A loss row is {"system", "stage", "language", "final", "curve", "held_out", "usual_seconds"}: `stage` is the pipeline's
step ("pretrain", "build-mini", "adapt"), `final` the mean loss over the end of training, `curve` a list of [EFLOPs,
loss], `held_out` one of [step, EFLOPs, bits a byte of held-out text] (in step 2 of the whole body with the pack, at the
snapshots), `usual_seconds` the time of all steps at the median rate: what a machine that stood still for a while does
not change.
"""

import math
import statistics
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
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
    held_out: list[list[float]]
    usual_seconds: float


class DevelopmentRow(TypedDict):
    """[step, score] of one finetuning on its task's development file."""

    system: str
    task: str
    seed: int
    curve: list[list[float]]


class LossRecord(Stored):
    """What is read of a line of metrics.jsonl; that of step 0 has held-out losses alone."""

    step: Count
    eflops: Amount
    loss: Amount = math.nan
    tflops_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] = math.nan
    bits: Amount | None = Field(None, alias="held_out/bits_per_byte")
    body_bits: Amount | None = Field(None, alias="held_out/body_bits_per_byte")
    score: Amount | None = Field(None, alias="dev/score")

    @model_validator(mode="after")
    def _has_trained(self) -> Self:
        if self.step and not {"loss", "tflops_per_second"} <= self.model_fields_set:
            raise ValueError("loss or tflops_per_second is missing")
        return self


def read_losses(path: Path, system: str, stage: str, language: str) -> LossRow | None:
    """Loss row of one run, or None where nothing was logged."""
    every = _records(path)
    records = [record for record in every if record.step]
    if not records:
        return None
    of_body = [(record, record.body_bits) for record in every]
    of_trained = [(record, record.bits) for record in every]
    held_out = of_body if any(bits is not None for _, bits in of_body) else of_trained
    start = (1 - LAST_SHARE) * records[-1].step
    return {
        "system": system,
        "stage": stage,
        "language": language,
        "final": statistics.fmean(record.loss for record in records if record.step >= start),
        "curve": _stretches([(record.eflops, record.loss) for record in records]),
        "held_out": [[record.step, record.eflops, bits] for record, bits in held_out if bits is not None],
        "usual_seconds": 1e6 * records[-1].eflops / statistics.median(record.tflops_per_second for record in records),
    }


def read_development(path: Path) -> list[list[float]]:
    """[step, score] of one run wherever it was scored on a development file."""
    return [[record.step, record.score] for record in _records(path) if record.score is not None]


def _records(path: Path) -> list[LossRecord]:
    """By rising steps. A run that was killed and resumed writes some again: the last record of a step counts."""
    advice = "put it back from a copy, or delete it: nothing but the report reads it"
    by_step = {record.step: record for record in read_model_lines(path, LossRecord, advice)}
    return [by_step[step] for step in sorted(by_step)]


def _stretches(points: list[tuple[float, float]]) -> list[list[float]]:
    """Means of consecutive stretches of (x, y) points."""
    size = math.ceil(len(points) / NUM_STRETCHES)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [[statistics.fmean(axis) for axis in zip(*stretch, strict=True)] for stretch in stretches]
