"""Groups of ranks that work together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Group:
    """Ranks that work together.

    Args:
        rank: this rank's index among them.
        size: how many they are.
        handle: torch's group; None: all ranks there are.
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    def __deepcopy__(self, _memo: dict) -> Group:
        """Return the group itself: a copied module belongs to the same ranks."""
        return self

    def shares(self, total: int) -> list[range]:
        """Return the range of `total` entries that each rank holds; lengths differ by one at most.

        The ranges follow each other.
        """
        ends = [rank * total // self.size for rank in range(self.size + 1)]
        return [range(first, last) for first, last in itertools.pairwise(ends)]

    def share(self, total: int) -> range:
        """Return the range of `total` entries that this rank holds."""
        return self.shares(total)[self.rank]


# A group of one rank, in which nothing is split.
SOLO = Group()


def split_world(rank: int, size: int, tensor_parallel: int) -> tuple[Group, Group]:
    """Return the data group and the tensor group of a rank.

    Consecutive ranks, which share a host and so exchange activations fastest, share one replica.

    Args:
        rank: the rank.
        size: how many ranks there are.
        tensor_parallel: how many of them share one replica.

    Returns:
        The ranks that hold the same part of each replica, and those that hold the parts of one
        replica and see the same samples.
    """
    if tensor_parallel == 1:
        return Group(rank, size), SOLO
    # Every rank must take part in the making of every group.
    tensor_groups = [
        dist.new_group(list(range(first, first + tensor_parallel)))
        for first in range(0, size, tensor_parallel)
    ]
    data_groups = [
        dist.new_group(list(range(part, size, tensor_parallel))) for part in range(tensor_parallel)
    ]
    replica, part = divmod(rank, tensor_parallel)
    data = Group(replica, size // tensor_parallel, data_groups[part])
    tensor = Group(part, tensor_parallel, tensor_groups[replica])
    return data, tensor
