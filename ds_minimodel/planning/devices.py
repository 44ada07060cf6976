"""Devices to plan for: what data sheets say of GPUs, and what `ds-minimodel calibrate` has measured of a machine.

One entry of GPUS declares a GPU. A measured rate holds for a size: a curve gives it at some sizes, and in between it is
interpolated.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import OF_LIST, Count, Stored, read_model

MEASURE_AGAIN = "write it again with `ds-minimodel calibrate`"


def _rising(curve: list[list[float]]) -> list[list[float]]:
    if any(after[0] <= before[0] for before, after in pairwise(curve)):
        raise ValueError("the sizes must rise")
    return curve


def _serves(kinds: dict[str, list]) -> dict[str, list]:
    if not {"copy", "product"} <= kinds.keys():
        raise ValueError("needs copy and product")
    return kinds


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds control characters")
    return text


Rate = Annotated[float, Field(ge=1, le=1e21)]  # FLOP or bytes a second
Seconds = Annotated[float, Field(ge=0, le=60)]
Point = Annotated[list[Rate], Field(min_length=2, max_length=2)]
RateCurve = Annotated[list[Point], Field(min_length=1), AfterValidator(_rising)]  # (size, rate)


def rate_at(curve: Sequence[Sequence[float]], size: float) -> float:
    """The rate of a curve at a size: between its points linear in the logarithms, outside as at the nearest."""
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, slow), (high, fast) in pairwise(curve):
        if size <= high:
            share = math.log(size / low) / math.log(high / low)
            return slow * (fast / slow) ** share
    return curve[-1][1]


class Link(Stored):
    """The way between ranks.

    bandwidth: bytes a second in a collective; between nodes of a whole node. latency: seconds of one message.
    """

    bandwidth: Rate
    latency: Seconds


class Overhead(Stored):
    """Seconds of the engine beside the operators: a step's, and a micro-batch's for each tensor that trains."""

    step: Seconds = 0.0
    tensor: Seconds = 0.0


class Measured(Stored):
    """How fast a device was found to be.

    rates: {precision: {kind of operator: curve}}, kinds as of tracing.py. A `product` has FLOP/s by the smallest of
    its three dimensions, attention FLOP/s by its number of keys, the others bytes a second by bytes; those without a
    curve have `copy`'s. launch: seconds that the host takes for each operator. overheads: {precision: of ZeRO 0 to 3}.
    slowdown: (ranks that share the machine, how many times as long each takes as one alone), of one rank first; one
    point where each rank has a device of its own. in_node, between_nodes: links; None where they are not known.
    """

    rates: dict[str, Annotated[dict[str, RateCurve], AfterValidator(_serves)]]
    launch: Seconds
    overheads: dict[str, Annotated[list[Overhead], Field(min_length=4, max_length=4)]]
    slowdown: RateCurve = [[1.0, 1.0]]
    in_node: Link | None = None
    between_nodes: Link | None = None


class Device(Stored):
    """A device to plan for.

    memory: bytes for training on one. precision: what `auto` means there. type: "cpu" or "cuda". shared: the memory is
    a machine's, for all its ranks. source: where the rest comes from. capability: a GPU's, (8, 0) for sm_80. peaks:
    {precision: FLOP/s of products} of a data sheet. measured: None where `calibrate` has not.
    """

    name: Annotated[str, AfterValidator(_printable)]
    type: Annotated[str, Field(pattern="^(cpu|cuda)$")]
    memory: Count
    precision: Annotated[str, Field(pattern="^(fp32|bf16|fp16)$")]
    shared: bool = False
    source: str = ""
    capability: Annotated[tuple[int, int] | None, OF_LIST] = None
    peaks: dict[str, Rate] = {}
    measured: Measured | None = None

    def memory_of_rank(self, ranks_per_node: int) -> int:
        """Bytes that one rank has."""
        return self.memory // ranks_per_node if self.shared else self.memory

    def resolve(self, precision: str) -> str:
        """The precision that a recipe's setting means here; UserError for one that the device does not have."""
        if self.type == "cpu" and self.measured is None:
            import torch

            from ds_minimodel.ops.precision import resolve_precision

            return resolve_precision(precision, torch.device("cpu"))
        precision = self.precision if precision == "auto" else precision
        known = self.measured.rates if self.measured else self.peaks
        if precision not in known:
            raise UserError(f"engine.precision {precision}: {self.name} has {', '.join(known)} alone")
        return precision


# Memory and peaks of dense products, SXM modules. fp32 without TF32, which torch does not take unless told to. A data
# sheet's GB are 10^9 bytes here, so that the CUDA context finds room, too.
def _gpu(name: str, gigabytes: int, capability: tuple[int, int], teraflops: dict[str, float], sheet: str) -> Device:
    return Device(
        name=name,
        type="cuda",
        memory=gigabytes * 10**9,
        precision="bf16" if "bf16" in teraflops else "fp16",
        source=f"NVIDIA {sheet} Tensor Core GPU data sheet",
        capability=capability,
        peaks={precision: rate * 1e12 for precision, rate in teraflops.items()},
    )


_V100 = {"fp16": 125.0, "fp32": 15.7}
_A100 = {"fp16": 312.0, "bf16": 312.0, "fp32": 19.5}
_HOPPER = {"fp16": 989.5, "bf16": 989.5, "fp32": 67.0}  # the data sheets' 1,979 are of sparse products
GPUS = {
    device.name: device
    for device in (
        _gpu("v100-16g", 16, (7, 0), _V100, "V100"),
        _gpu("v100-32g", 32, (7, 0), _V100, "V100"),
        _gpu("a100-80g", 80, (8, 0), _A100, "A100"),
        _gpu("h100-80g", 80, (9, 0), _HOPPER, "H100"),
        _gpu("h200-141g", 141, (9, 0), _HOPPER, "H200"),
    )
}
NAMES = (*GPUS, "cpu")


def named(name: str) -> Device:
    """The Device of that name, or of that file of `ds-minimodel calibrate`; UserError for another.

    `cpu` is this machine's, whose memory its ranks share; of it nothing has been measured.
    """
    if name == "cpu":
        from ds_minimodel.engine.partition import machine_memory  # with torch, which the command line does without

        return Device(name=name, type="cpu", memory=machine_memory(), precision="bf16", shared=True)
    if name in GPUS:
        return GPUS[name]
    if not name.endswith(".json") and not Path(name).is_file():
        raise UserError(f"--device {name}: unknown; there are {', '.join(NAMES)} and files of `ds-minimodel calibrate`")
    return read_model(name, Device, MEASURE_AGAIN)
