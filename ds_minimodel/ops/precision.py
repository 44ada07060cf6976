"""The precisions that a recipe names: their types, and which one `auto` means on a device."""

import torch

from ds_minimodel.common.errors import UserError
from ds_minimodel.ops.cpu import has_bf16_products

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: str, device: torch.device, key: str = "engine.precision") -> str:
    """Return the precision of a device, where `auto` is one of DTYPES.

    auto is bf16 where matrix products in it are fast (Ampere or newer; CPUs with AVX512-BF16, AMX
    or ARM's bf16), fp16 on older GPUs, and else fp32.

    Args:
        precision: one of DTYPES, or auto.
        device: where the products are made.
        key: the setting's name, for the message.

    Raises:
        UserError: the device does not have that precision.
    """
    if precision == "fp16" and device.type == "cpu":
        raise UserError(f"{key}: fp16 needs a GPU; use bf16, fp32 or auto")
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "bf16" if has_bf16_products() else "fp32"


def decoder_dtype(device: torch.device) -> torch.dtype:
    """Return the type of a decoder's weights where it only reads or writes.

    That is bf16 or fp32: fp16 has too few numbers for some models.
    """
    is_bf16 = resolve_precision("auto", device) == "bf16"
    return torch.bfloat16 if is_bf16 else torch.float32
