"""Tensors that are read when they are asked for, and files of them written one after the other.

A model of eight billion weights is looked at, changed and written with the memory of its largest
tensor.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ds_minimodel.common.errors import UserError

# safetensors' names of the types that weights have.
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# This stands for types that no weights have, such as int64, in which older files hold positions.
_OTHER = torch.bool


@dataclass(frozen=True)
class Lazy:
    """A tensor that is not in memory: its shape and type, and what reads it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> Lazy:
        """Return the entry of a tensor that is in memory."""
        return cls(tuple(tensor.shape), tensor.dtype, lambda: tensor)

    def equals(self, other: Lazy) -> bool:
        """Return whether it has another's shape, type and numbers."""
        is_alike = (self.shape, self.dtype) == (other.shape, other.dtype)
        return is_alike and torch.equal(self.read(), other.read())

    def map(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Lazy:
        """Return the tensor that `change` makes of it.

        Args:
            change: a function of the tensor, which keeps its shape.
            dtype: type of what it returns, where that is another.
        """
        return Lazy(self.shape, dtype or self.dtype, lambda: change(self.read()))

    def rows(self, first: int, last: int) -> Lazy:
        """Return its rows from `first` to before `last`."""
        shape = (last - first, *self.shape[1:])
        return Lazy(shape, self.dtype, lambda: self.read()[first:last].clone())

    @classmethod
    def concat(cls, parts: Sequence[Lazy]) -> Lazy:
        """Return several tensors of one width and type, one below the other."""
        if len(parts) == 1:
            return parts[0]
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        return cls(shape, parts[0].dtype, lambda: torch.cat([part.read() for part in parts]))


class LazyTensors(Mapping[str, Tensor]):
    """A state dict of which each tensor is read anew when it is asked for.

    Args:
        entries: its tensors, none of them read.
    """

    def __init__(self, entries: Mapping[str, Lazy]):
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Tensor:
        return self.entries[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def under(self, prefix: str) -> LazyTensors:
        """Return those whose names start with `prefix`, without it."""
        return LazyTensors(
            {
                name.removeprefix(prefix): lazy
                for name, lazy in self.entries.items()
                if name.startswith(prefix)
            }
        )


def lazy_entries(tensors: Mapping[str, Tensor]) -> dict[str, Lazy]:
    """Return the entries of any state dict."""
    if isinstance(tensors, LazyTensors):
        return tensors.entries
    return {name: Lazy.of(tensor) for name, tensor in tensors.items()}


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of a state dict, of which nothing is read."""
    return {name: lazy.shape for name, lazy in lazy_entries(tensors).items()}


def open_tensors(path: Path, advice: str) -> LazyTensors:
    """Return the tensors of a safetensors file.

    Args:
        path: of the file.
        advice: what a user is told to do where it is damaged.

    Raises:
        UserError: the file is damaged; or, when a tensor is read, it is of a type that weights
            have not, or holds NaN or infinite numbers.
    """

    def read(name: str, kind: str) -> Tensor:
        if kind not in DTYPES:
            raise UserError(
                f"{path}: {name!r:.80} is of type {kind}, where weights are fp32, bf16 or fp16; "
                f"{advice}"
            )
        with _readable(path, advice), safe_open(path, "pt") as file:
            # A view would keep the file open.
            tensor: Tensor = file.get_tensor(name).clone()
        # The smallest and the largest number show it without a mask as large as the tensor.
        if tensor.numel() and not all(end.isfinite() for end in tensor.aminmax()):
            raise UserError(f"{path}: {name!r:.80} holds NaN or infinite numbers; {advice}")
        return tensor

    def entry(name: str, part: Any) -> Lazy:
        kind = part.get_dtype()
        return Lazy(tuple(part.get_shape()), DTYPES.get(kind, _OTHER), lambda: read(name, kind))

    with _readable(path, advice), safe_open(path, "pt") as file:
        names = list(file.keys())
        return LazyTensors({name: entry(name, file.get_slice(name)) for name in names})


@contextlib.contextmanager
def _readable(path: Path, advice: str) -> Iterator[None]:
    """Turn what safetensors raises into a UserError."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or unreadable ({error}); {advice}") from None


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, one tensor after the other, so that one alone is in memory."""
    entries = dict(sorted(lazy_entries(tensors).items()))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, lazy in entries.items():
        start = end
        end += lazy.dtype.itemsize * torch.Size(lazy.shape).numel()
        header[name] = {
            "dtype": _NAMES[lazy.dtype],
            "shape": lazy.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    # The format aligns what follows to 8 bytes.
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, lazy in entries.items():
            _write(file, name, lazy)


def _write(file: IO[bytes], name: str, lazy: Lazy) -> None:
    """Write one tensor, which is out of memory again when this returns."""
    tensor = lazy.read().contiguous()
    assert tuple(tensor.shape) == lazy.shape and tensor.dtype == lazy.dtype, name
    file.write(tensor.flatten().view(torch.uint8).numpy().data)
