"""Devices that a plan can be made for: their memory, and the figures from which time is foretold.

One entry of GPUS declares a device; `ds-minimodel calibrate` writes the same structure for a machine that it has
measured. A rate holds for a size: `curve` gives it at some sizes, and in between is interpolated.
"""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import OF_LIST, Count, Stored, read_model

if TYPE_CHECKING:
    import torch

# A CUDA context and NCCL's buffers take memory that torch does not count.
CUDA_RESERVE = 1 << 30
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
Curve = Annotated[list[Point], Field(min_length=1), AfterValidator(_rising)]  # (size, rate)


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


class Crowd(Stored):
    """Ranks at work on a machine whose caches, memory and cores they share.

    slowdown: how many times as long each takes as one alone. link: between them; None for one.
    """

    ranks: Annotated[int, Field(gt=0, le=2**16)]
    slowdown: Annotated[float, Field(ge=1, le=1e6)]
    link: Link | None = None


def _growing(crowds: list[Crowd]) -> list[Crowd]:
    if (crowds and crowds[0].ranks != 1) or any(after.ranks <= before.ranks for before, after in pairwise(crowds)):
        raise ValueError("begins with one rank, and the crowds must grow")
    return crowds


class Overhead(Stored):
    """Seconds of the engine beside the operators: a step's, and a micro-batch's for each tensor that trains."""

    step: Seconds = 0.0
    tensor: Seconds = 0.0


class Figures(Stored):
    """How fast a device is, from which time is foretold.

    rates: {precision: {kind of operator: curve}}, kinds as of operators.py. A `product` has FLOP/s by the smallest of
    its three dimensions, attention FLOP/s by its number of keys, the others bytes a second by bytes; those without a
    curve have `copy`'s. launch: seconds that the host takes for each operator. runs_ahead: the host does not wait for
    the device, so that the slower of the two counts, not the sum. overheads: {precision: of ZeRO 0 to 3}. in_node,
    between_nodes: links; None where they are not known. sharing: crowds of rising size, of one rank first; none where
    each rank has a device of its own.
    """

    rates: dict[str, Annotated[dict[str, Curve], AfterValidator(_serves)]]
    launch: Seconds
    runs_ahead: bool = True
    overheads: dict[str, Annotated[list[Overhead], Field(min_length=4, max_length=4)]] = {}
    in_node: Link | None = None
    between_nodes: Link | None = None
    sharing: Annotated[list[Crowd], AfterValidator(_growing)] = []

    def kinds(self, precision: str) -> Mapping[str, Sequence[Sequence[float]]]:
        """{kind of operator: curve}; UserError for a precision that has no figures."""
        if precision not in self.rates:
            raise UserError(f"engine.precision {precision}: the device's figures are for {', '.join(self.rates)} alone")
        return self.rates[precision]

    def slowdown(self, ranks: int) -> float:
        """How many times as long a rank takes beside the others of its machine, `ranks` in all, as alone."""
        if not self.sharing:
            return 1.0
        curve = [(float(crowd.ranks), crowd.slowdown) for crowd in self.sharing]
        return rate_at(curve, ranks) * max(1.0, ranks / curve[-1][0])

    def link(self, ranks: int) -> Link | None:
        """The way between `ranks` ranks of a node: that of the smallest crowd with so many, else of the largest."""
        known = [crowd for crowd in self.sharing if crowd.link]
        return next((crowd.link for crowd in known if crowd.ranks >= ranks), known[-1].link if known else self.in_node)

    def peak(self, precision: str) -> float:
        """FLOP/s of the fastest product."""
        return max(rate for _, rate in self.kinds(precision)["product"])


class Device(Stored):
    """A device to plan for.

    memory: bytes for training on one. precision: what `auto` means there. type: "cpu" or "cuda". shared: the memory is
    a machine's, for all its ranks. source: where the figures come from; None: time cannot be foretold. capability: a
    GPU's, (8, 0) for sm_80.
    """

    name: Annotated[str, AfterValidator(_printable)]
    type: Annotated[str, Field(pattern="^(cpu|cuda)$")]
    memory: Count
    precision: Annotated[str, Field(pattern="^(fp32|bf16|fp16)$")]
    shared: bool = False
    source: str = ""
    figures: Figures | None = None
    capability: Annotated[tuple[int, int] | None, OF_LIST] = None

    def memory_of_rank(self, ranks_per_node: int) -> int:
        """Bytes that one rank has."""
        return self.memory // ranks_per_node if self.shared else self.memory

    def resolve(self, precision: str) -> str:
        """The precision that a recipe's setting means here; UserError for one that this machine's CPU does not have."""
        if self.type == "cpu" and self.figures is None:
            import torch

            from ds_minimodel.ops.precision import resolve_precision

            return resolve_precision(precision, torch.device("cpu"))
        return self.precision if precision == "auto" else precision


# Sources of the figures, by what they say.
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_V100 = "https://developer.nvidia.com/programming-tensor-cores-cuda-9-0, https://www.elprocus.com/nvidia-tesla-v100"
_HOPPER = "https://petronellatech.com/hardware/h100-h200-nvlink-cluster-scaling/, https://glennklockwood.com/garden/peak-FLOPS"
_ACHIEVED = "https://github.com/stas00/ml-engineering/tree/master/compute/accelerator"  # products: share of the peak
_MODEL = "https://github.com/calculon-ai/calculon/tree/main/systems"  # shares of memory's and of links' peaks
_BUS = "https://docs.alayanew.com/en/docs/tech-blog/2026-05-06-nccl-tests"  # all-reduce in a node, A100 and H100
_DISPATCH = "https://jiahuanglin.xyz/all_lessons/gpu_kernel_serving/18_pytorch_to_kernel.html"  # 5 to 25 us an operator

TILE = 128  # a product is made of tiles so wide on tensor cores; a narrower one fills a part of them
COPY_SHARES = ((1e6, 0.6), (1e7, 0.75), (1e8, 0.9))  # (bytes, share of the memory's peak): _MODEL
LAUNCH = 8e-6  # two in five operators are views, which end on the host; the others as _DISPATCH has them

OVERHEAD = Overhead(step=2e-3, tensor=6e-5)  # of the host, as `calibrate` finds them beside a CPU


def _gpu(
    name: str,
    gib: int,
    precision: str,
    capability: tuple[int, int],
    products: dict[str, float],
    copy: float,
    links: tuple[Link, Link],
    source: str,
) -> Device:
    """A GPU. products: FLOP/s of large ones by precision, as achieved. copy: peak bytes a second of its memory."""
    curves = {
        kind: {
            "product": [[size, rate * size / TILE] for size in (8, TILE)],
            "copy": [[size, share * copy] for size, share in COPY_SHARES],
        }
        for kind, rate in products.items()
    }
    in_node, between_nodes = links
    figures = Figures(
        rates=curves,
        launch=LAUNCH,
        overheads={kind: [OVERHEAD] * 4 for kind in products},
        in_node=in_node,
        between_nodes=between_nodes,
    )
    return Device(
        name=name,
        type="cuda",
        memory=(gib << 30) - CUDA_RESERVE,
        precision=precision,
        source=source,
        figures=figures,
        capability=capability,
    )


# Bandwidths of collectives: within a node as nccl-tests report it (V100: 65 % of 150 GB/s, as _MODEL has it of NVLink);
# between nodes 90 % of the network cards of a DGX: 4 x 100, 8 x 200 and 8 x 400 Gbit/s.
_V100_LINKS = Link(bandwidth=0.65 * 150e9, latency=1e-5), Link(bandwidth=0.9 * 50e9, latency=2e-5)
_A100_LINKS = Link(bandwidth=235e9, latency=1e-5), Link(bandwidth=0.9 * 200e9, latency=2e-5)
_HOPPER_LINKS = Link(bandwidth=450e9, latency=1e-5), Link(bandwidth=0.9 * 400e9, latency=2e-5)
# fp32 without TF32, which torch does not take unless told to. Of V100's 125 TFLOP/s in fp16, 80 % as of the others.
_V100_PRODUCTS = {"fp16": 0.8 * 125e12, "fp32": 0.9 * 15.7e12}
_A100_PRODUCTS = {"fp16": 267.9e12, "bf16": 267.9e12, "fp32": 0.9 * 19.5e12}
_HOPPER_PRODUCTS = {"fp16": 794.5e12, "bf16": 794.5e12, "fp32": 0.75 * 66.9e12}

GPUS = {
    device.name: device
    for device in (
        _gpu("v100-16g", 16, "fp16", (7, 0), _V100_PRODUCTS, 900e9, _V100_LINKS, f"{_V100}, {_MODEL}, {_DISPATCH}"),
        _gpu("v100-32g", 32, "fp16", (7, 0), _V100_PRODUCTS, 900e9, _V100_LINKS, f"{_V100}, {_MODEL}, {_DISPATCH}"),
        _gpu(
            "a100-80g",
            80,
            "bf16",
            (8, 0),
            _A100_PRODUCTS,
            2039e9,
            _A100_LINKS,
            f"{_A100}, {_ACHIEVED}, {_BUS}, {_DISPATCH}",
        ),
        _gpu(
            "h100-80g",
            80,
            "bf16",
            (9, 0),
            _HOPPER_PRODUCTS,
            3350e9,
            _HOPPER_LINKS,
            f"{_HOPPER}, {_ACHIEVED}, {_BUS}, {_DISPATCH}",
        ),
        _gpu(
            "h200-141g",
            141,
            "bf16",
            (9, 0),
            _HOPPER_PRODUCTS,
            4800e9,
            _HOPPER_LINKS,
            f"{_HOPPER}, {_ACHIEVED}, {_BUS}, {_DISPATCH}",
        ),
    )
}
NAMES = (*GPUS, "cpu")


def named(name: str) -> Device:
    """The Device of that name, or of that file of `ds-minimodel calibrate`; UserError for another.

    `cpu` is this machine's, whose memory its ranks share; it has no figures before they are measured.
    """
    if name == "cpu":
        return Device(name=name, type="cpu", memory=machine_memory(), precision="bf16", shared=True)
    if name in GPUS:
        return GPUS[name]
    if not name.endswith(".json") and not Path(name).is_file():
        raise UserError(f"--device {name}: unknown; there are {', '.join(NAMES)} and files of `ds-minimodel calibrate`")
    return read_model(name, Device, MEASURE_AGAIN)


def memory_of(device: "torch.device", ranks_per_node: int) -> int:
    """Bytes that one rank has on `device` (torch.device), where `ranks_per_node` ranks share the machine."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_properties(device).total_memory - CUDA_RESERVE
    return machine_memory() // ranks_per_node


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
