"""Copies of the training state: taken into host memory, and written to disk with verification."""

import copy
import hashlib
import os
from pathlib import Path
from typing import IO, Any, cast

import torch

from ds_minimodel.common.files import sha256_of_file


def to_host(state: Any) -> Any:
    """A copy of nested containers in host memory; copies from a GPU may still run (`wait_for_copies`).

    Tensors that are one stay one. Views become compact: torch.save would else write all that they are views of.
    """
    return _to_host(state, {})


def _to_host(value: Any, copies: dict) -> Any:
    """copies: those made so far, by the memory that they are of."""
    if isinstance(value, torch.Tensor):
        key = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if key not in copies:
            host = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            copies[key] = host.copy_(value.detach(), non_blocking=True)
        return copies[key]
    if isinstance(value, dict):
        return type(value)((key, _to_host(item, copies)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_to_host(item, copies) for item in value)
    return copy.deepcopy(value)


def wait_for_copies() -> None:
    """Wait for the copies from a GPU, which run beside the host's work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def is_finite(state: Any) -> bool:
    """Whether all tensors of nested containers are finite; reads them without making another."""
    if isinstance(state, torch.Tensor):
        return (
            not state.is_floating_point()
            or not state.numel()
            or bool(torch.isfinite(torch.stack(torch.aminmax(state))).all())
        )
    items = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return all(map(is_finite, items))


def write_verified(path: Path, state: Any) -> dict[str, int | str]:
    """torch.save with fsync; {"bytes", "sha256"} of what was written.

    OSError where it does not read back the same.
    """
    with open(path, "wb") as file:
        hashed = _Hashed(file)
        torch.save(state, cast(IO[bytes], hashed))
        file.flush()
        os.fsync(file.fileno())
    written: dict[str, int | str] = {"bytes": hashed.size, "sha256": hashed.sha256.hexdigest()}
    if sha256_of_file(path) != written["sha256"]:
        raise OSError(f"{path}: does not read back as it was written; the disk may be failing")
    return written


class _Hashed:
    """A file for torch.save that hashes what goes into it."""

    def __init__(self, file: IO[bytes]):
        self.file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()
