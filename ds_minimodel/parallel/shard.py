"""Parameters of which each rank of a group holds a part. What is written to disk is always whole."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

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

    def take(self, whole):
        """This rank's part of a whole tensor, a copy."""
        share = self.group.share(self.length)
        blocks = whole.unflatten(self.dim, (self.sections, self.length))
        return blocks.narrow(self.dim + 1, share.start, len(share)).flatten(self.dim, self.dim + 1).clone()

    def join(self, own):
        """The whole tensor of which each rank of the group gives its own part; on every rank."""
        parts = []
        for rank, share in enumerate(self.group.shares(self.length)):
            shape = list(own.shape)
            shape[self.dim] = self.sections * len(share)
            part = own.contiguous() if rank == self.group.rank else own.new_empty(shape)
            dist.broadcast(part, group=self.group.handle, group_src=rank)  # all_gather wants equal parts
            parts.append(part.unflatten(self.dim, (self.sections, len(share))))
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)


def shard_parameter(module, name, group, dim, sections=1):
    """Replace a parameter of `module` by this rank's part of it, which knows what it is a part of."""
    whole = getattr(module, name)
    shard = Shard(group, dim, sections, whole.shape[dim] // sections)
    own = nn.Parameter(shard.take(whole.detach()), requires_grad=whole.requires_grad)
    own.shard = shard
    own.tensor_model_parallel = True  # DeepSpeed: it counts in the gradient's norm on every rank
    setattr(module, name, own)


def full_shape(parameter):
    """Shape of the tensor that `parameter` is, or is a part of."""
    shape = list(parameter.shape)
    if hasattr(parameter, "shard"):
        shape[parameter.shard.dim] = parameter.shard.sections * parameter.shard.length
    return torch.Size(shape)


def own_part(parameter, whole):
    """What `parameter` holds of the tensor `whole`."""
    return parameter.shard.take(whole) if hasattr(parameter, "shard") else whole


def full_tensor(parameter, own):
    """The whole of the tensor of which `own` (like `parameter`) is this rank's part; collective in its group."""
    return parameter.shard.join(own) if hasattr(parameter, "shard") else own
