"""Devices to plan for: GPUs by their data sheets, and this machine's CPUs. One entry of GPUS declares a GPU."""

from typing import NamedTuple

from ds_minimodel.common.errors import UserError


class Device(NamedTuple):
    """A device to plan for.

    type: "cpu" or "cuda". memory: bytes for training; of CPUs the machine's, which its ranks share. precisions: what a
    GPU has, first what `auto` means there.
    """

    name: str
    type: str
    memory: int
    precisions: tuple[str, ...] = ()

    def memory_of_rank(self, ranks: int) -> int:
        """Bytes that one of so many ranks has."""
        return self.memory // ranks if self.type == "cpu" else self.memory

    def resolve(self, precision: str) -> str:
        """The precision that a recipe's setting means here; UserError for one that the device does not have."""
        if self.type == "cpu":
            import torch

            from ds_minimodel.ops.precision import resolve_precision

            return resolve_precision(precision, torch.device("cpu"))
        precision = self.precisions[0] if precision == "auto" else precision
        if precision not in self.precisions:
            raise UserError(f"engine.precision {precision}: {self.name} has {', '.join(self.precisions)} alone")
        return precision


_OLD, _NEW = ("fp16", "fp32"), ("bf16", "fp16", "fp32")
# A data sheet's GB are 10^9 bytes here, so that the CUDA context finds room, too.
GPUS = {
    device.name: device
    for device in (
        Device("v100-16g", "cuda", 16 * 10**9, _OLD),
        Device("v100-32g", "cuda", 32 * 10**9, _OLD),
        Device("a100-80g", "cuda", 80 * 10**9, _NEW),
        Device("h100-80g", "cuda", 80 * 10**9, _NEW),
        Device("h200-141g", "cuda", 141 * 10**9, _NEW),
    )
}
NAMES = (*GPUS, "cpu")


def device_named(name: str) -> Device:
    """The Device of that name, "cpu" for this machine's CPUs; UserError for another."""
    if name == "cpu":
        from ds_minimodel.training.partition import machine_memory  # with torch, which the command line does without

        return Device(name, name, machine_memory())
    if name not in GPUS:
        raise UserError(f"--device {name}: unknown; there are {', '.join(NAMES)}")
    return GPUS[name]
