"""Parameters of which each rank of a group holds a part; files on disk always hold the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_minimodel.ops.parallel.group import Group


@dataclass(frozen=True)
class Shard:
    """Which part of a tensor this rank holds: its share of each of the tensor's blocks.

    Args:
        group: the ranks.
        dim: the dimension along which the tensor is split.
        lengths: entries of the blocks along `dim`, such as queries, keys and values of one
            projection.
    """

    group: Group
    dim: int
    lengths: tuple[int, ...]

    def slice_of(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor, as a copy."""
        parts = []
        for block in whole.split(self.lengths, self.dim):
            share = self.group.share(block.shape[self.dim])
            parts.append(block.narrow(self.dim, share.start, len(share)))
        return torch.cat(parts, self.dim)

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor on every rank; collective in the group.

        Args:
            part: what this rank holds.
        """
        by_rank = []
        for rank in range(self.group.size):
            lengths = [len(self.group.shares(length)[rank]) for length in self.lengths]
            shape = list(part.shape)
            shape[self.dim] = sum(lengths)
            buffer = part.contiguous() if rank == self.group.rank else part.new_empty(shape)
            # all_gather would want equal parts.
            dist.broadcast(buffer, group=self.group.handle, group_src=rank)
            by_rank.append(buffer.split(lengths, self.dim))
        by_block = zip(*by_rank, strict=True)
        return torch.cat([share for shares in by_block for share in shares], self.dim)


def shard_parameter(
    module: nn.Module, name: str, group: Group, dim: int, lengths: Sequence[int] | None = None
) -> None:
    """Replace a parameter of `module` by this rank's part of it, which has the attribute `shard`.

    Args:
        module: is changed.
        name: the parameter's.
        group: the ranks.
        dim: the dimension along which the parameter is split.
        lengths: entries of its blocks along `dim`; None: it is one block.
    """
    whole = getattr(module, name)
    shard = Shard(group, dim, tuple(lengths or (whole.shape[dim],)))
    part = nn.Parameter(shard.slice_of(whole.detach()), requires_grad=whole.requires_grad)
    part.shard = shard  # type: ignore[attr-defined]
    # DeepSpeed reads it: this parameter counts in the gradient's norm on every rank.
    part.tensor_model_parallel = True  # type: ignore[attr-defined]
    if hasattr(whole, "source"):
        part.source = whole.source  # type: ignore[attr-defined]
    setattr(module, name, part)


def full_shape(parameter: nn.Parameter) -> torch.Size:
    """Return the shape of the tensor that `parameter` is, or is a part of."""
    shape = list(parameter.shape)
    if hasattr(parameter, "shard"):
        shape[parameter.shard.dim] = sum(parameter.shard.lengths)
    return torch.Size(shape)


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """Return the part of the tensor `whole` that `parameter` holds."""
    assert whole.shape == full_shape(parameter), (whole.shape, parameter)
    return parameter.shard.slice_of(whole) if hasattr(parameter, "shard") else whole


def fill(parameter: nn.Parameter) -> None:
    """Give a parameter its values, where its attribute `source` gives those of the whole tensor."""
    if hasattr(parameter, "source"):
        part = own_part(parameter, parameter.source())
        parameter.data = part.to(parameter.device, parameter.dtype)
        del parameter.source


def full_tensor(parameter: nn.Parameter, part: Tensor) -> Tensor:
    """Return the whole of a tensor that is split as `parameter` is; collective in its group.

    Args:
        parameter: says how.
        part: what this rank holds of the tensor.
    """
    return parameter.shard.gather(part) if hasattr(parameter, "shard") else part
