"""Parameters of which each rank of a group holds a part. Files on disk always hold whole parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .group import Group


@dataclass(frozen=True)
class Shard:
    """Which part of a tensor this rank holds.

    Along `dim` the whole tensor consists of `sections` blocks of `length` entries (queries, keys and values of
    one projection); the rank holds its share of each.
    """

    group: Group
    dim: int
    sections: int
    length: int

    def slice_of(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, a copy."""
        share = self.group.share(self.length)
        blocks = whole.unflatten(self.dim, (self.sections, self.length))
        return blocks.narrow(self.dim + 1, share.start, len(share)).flatten(self.dim, self.dim + 1).clone()

    def gather(self, own: Tensor) -> Tensor:
        """The whole tensor of which each rank of the group gives its own part; on every rank."""
        parts = []
        for rank, share in enumerate(self.group.shares(self.length)):
            shape = list(own.shape)
            shape[self.dim] = self.sections * len(share)
            part = own.contiguous() if rank == self.group.rank else own.new_empty(shape)
            dist.broadcast(part, group=self.group.handle, group_src=rank)  # all_gather wants equal parts
            parts.append(part.unflatten(self.dim, (self.sections, len(share))))
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)


def shard_parameter(module: nn.Module, name: str, group: Group, dim: int, sections: int = 1) -> None:
    """Replace a parameter of `module` by this rank's part of it, whose attribute `shard` says which part that is."""
    whole = getattr(module, name)
    shard = Shard(group, dim, sections, whole.shape[dim] // sections)
    own = nn.Parameter(shard.slice_of(whole.detach()), requires_grad=whole.requires_grad)
    own.shard = shard  # type: ignore[attr-defined]
    # DeepSpeed reads it: this parameter counts in the gradient's norm on every rank.
    own.tensor_model_parallel = True  # type: ignore[attr-defined]
    setattr(module, name, own)


def full_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of the tensor that `parameter` is, or is a part of."""
    shape = list(parameter.shape)
    if hasattr(parameter, "shard"):
        shape[parameter.shard.dim] = parameter.shard.sections * parameter.shard.length
    return torch.Size(shape)


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """The part of the tensor `whole` that `parameter` holds."""
    return parameter.shard.slice_of(whole) if hasattr(parameter, "shard") else whole


def full_tensor(parameter: nn.Parameter, own: Tensor) -> Tensor:
    """The whole of the tensor of which `own` (like `parameter`) is this rank's part; collective in its group."""
    return parameter.shard.gather(own) if hasattr(parameter, "shard") else own
