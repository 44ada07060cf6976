"""What DeepSpeed would write, copied to host memory; and such copies on disk, verified."""

import copy
import hashlib
import os
from pathlib import Path

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.engine.checkpoints.restore import load_file


class HostCopies(CheckpointEngine):
    """DeepSpeed's reader and writer of files: keeps what it is to write in `taken`, {path: state}."""

    def __init__(self):
        super().__init__()
        self.taken = {}

    def create(self, info):
        self.taken = {}

    def save(self, state_dict, path):
        self.taken[Path(path)] = _to_host(state_dict, {})

    def load(self, path, map_location=None):
        return load_file(path)

    def commit(self, info):
        return True


def wait_for_copies():
    """Copies from a GPU run beside the host's work: wait until they are there."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _to_host(value, copies):
    """A copy of nested containers that training no longer changes; tensors that are one stay one.

    Views become compact: torch.save would else write all that they are views of.
    """
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


def is_finite(state):
    """Whether all tensors of nested containers are finite; reads them without making another."""
    if isinstance(state, torch.Tensor):
        return (
            not state.is_floating_point()
            or not state.numel()
            or bool(torch.isfinite(torch.stack(torch.aminmax(state))).all())
        )
    items = state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ()
    return all(map(is_finite, items))


def write_verified(path, state):
    """torch.save with fsync; {"bytes", "sha256"} of what was written.

    OSError where it does not read back the same.
    """
    with open(path, "wb") as file:
        hashed = _Hashed(file)
        torch.save(state, hashed)
        file.flush()
        os.fsync(file.fileno())
    written = {"bytes": hashed.size, "sha256": hashed.sha256.hexdigest()}
    if sha256_of_file(path) != written["sha256"]:
        raise OSError(f"{path}: does not read back as it was written; the disk may be failing")
    return written


class _Hashed:
    """A file for torch.save that hashes what goes into it."""

    def __init__(self, file):
        self.file, self.sha256, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self.sha256.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()
