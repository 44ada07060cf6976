"""Devices that a plan can be made for."""

import os
from typing import NamedTuple

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.ops.precision import resolve_precision

# A CUDA context and NCCL's buffers take memory that torch does not count.
CUDA_RESERVE = 1 << 30


class Device(NamedTuple):
    """A device to plan for.

    memory: bytes for training on one. precision: what `auto` means there. capability: a GPU's, (8, 0) for sm_80.
    """

    name: str
    memory: int
    precision: str
    capability: tuple[int, int] | None = None

    @property
    def type(self) -> str:
        return "cpu" if self.name == "cpu" else "cuda"

    def resolve(self, precision: str) -> str:
        """The precision that a recipe's setting means here; UserError for one that this machine's CPU does not have."""
        if self.type == "cpu":
            return resolve_precision(precision, torch.device("cpu"))
        return self.precision if precision == "auto" else precision


def _gpu(name: str, gib: int, precision: str, capability: tuple[int, int]) -> Device:
    return Device(name, (gib << 30) - CUDA_RESERVE, precision, capability)


GPUS = {
    device.name: device
    for device in (
        _gpu("v100-16g", 16, "fp16", (7, 0)),
        _gpu("v100-32g", 32, "fp16", (7, 0)),
        _gpu("a100-80g", 80, "bf16", (8, 0)),
        _gpu("h100-80g", 80, "bf16", (9, 0)),
    )
}


def named(name: str, ranks_per_node: int) -> Device:
    """The Device of that name; UserError for an unknown one. `cpu` is this machine's, shared by its ranks."""
    if name == "cpu":
        return Device(name, machine_memory() // ranks_per_node, "bf16")
    if name not in GPUS:
        raise UserError(f"--device {name}: unknown; there are {', '.join(GPUS)} and cpu")
    return GPUS[name]


def memory_of(device: torch.device, ranks_per_node: int) -> int:
    """Bytes that one rank has on `device` (torch.device), where `ranks_per_node` ranks share the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory - CUDA_RESERVE
    return machine_memory() // ranks_per_node


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
