"""Parameters of which each rank of a group holds a part. Files on disk always hold whole
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_minimodel.ops.parallel.group import Group


@dataclass(frozen=True)
class Shard:
    """Which part of a tensor this rank holds.

    Along `dim` the whole tensor consists of blocks of `lengths` entries (queries, keys and values
    of one projection); the rank holds its share of each.
    """

    group: Group
    dim: int
    lengths: tuple[int, ...]

    def slice_of(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor, a copy."""
        shares = (self.group.share(length) for length in self.lengths)
        blocks = zip(whole.split(self.lengths, self.dim), shares, strict=True)
        return torch.cat(
            [block.narrow(self.dim, share.start, len(share)) for block, share in blocks], self.dim
        )

    def gather(self, own: Tensor) -> Tensor:
        """The whole tensor of which each rank of the group gives its own part; on every rank."""
        blocks = []
        for rank in range(self.group.size):
            lengths = [len(self.group.shares(length)[rank]) for length in self.lengths]
            shape = list(own.shape)
            shape[self.dim] = sum(lengths)
            part = own.contiguous() if rank == self.group.rank else own.new_empty(shape)
            dist.broadcast(
                part, group=self.group.handle, group_src=rank
            )  # all_gather wants equal parts
            blocks.append(part.split(lengths, self.dim))
        return torch.cat([part for parts in zip(*blocks, strict=True) for part in parts], self.dim)


def shard_parameter(
    module: nn.Module, name: str, group: Group, dim: int, lengths: Sequence[int] | None = None
) -> None:
    """Replace a parameter of `module` by this rank's part of it, whose attribute `shard` says which
    part that is.

    lengths: of the blocks of which the rank holds a share each; None: the parameter is one.
    """
    whole = getattr(module, name)
    shard = Shard(group, dim, tuple(lengths or (whole.shape[dim],)))
    own = nn.Parameter(shard.slice_of(whole.detach()), requires_grad=whole.requires_grad)
    own.shard = shard  # type: ignore[attr-defined]
    # DeepSpeed reads it: this parameter counts in the gradient's norm on every rank.
    own.tensor_model_parallel = True  # type: ignore[attr-defined]
    if hasattr(whole, "source"):
        own.source = whole.source  # type: ignore[attr-defined]
    setattr(module, name, own)


def full_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of the tensor that `parameter` is, or is a part of."""
    shape = list(parameter.shape)
    if hasattr(parameter, "shard"):
        shape[parameter.shard.dim] = sum(parameter.shard.lengths)
    return torch.Size(shape)


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """The part of the tensor `whole` that `parameter` holds."""
    assert whole.shape == full_shape(parameter), (whole.shape, parameter)
    return parameter.shard.slice_of(whole) if hasattr(parameter, "shard") else whole


def fill(parameter: nn.Parameter) -> None:
    """Put numbers into a parameter that has none yet: its attribute `source` gives the whole
    tensor.
    """
    if hasattr(parameter, "source"):
        parameter.data = own_part(parameter, parameter.source()).to(
            parameter.device, parameter.dtype
        )
        del parameter.source


def full_tensor(parameter: nn.Parameter, own: Tensor) -> Tensor:
    """The whole of the tensor of which `own` (like `parameter`) is this rank's part; collective in
    its group.
    """
    return parameter.shard.gather(own) if hasattr(parameter, "shard") else own
