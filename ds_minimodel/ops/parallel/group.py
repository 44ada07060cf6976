"""Groups of ranks that work together."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Group:
    """Ranks that work together: this one's place among them, and torch's handle (None: all ranks
    there are).
    """

    rank: int = 0
    size: int = 1
    handle: dist.ProcessGroup | None = None

    def __deepcopy__(self, _memo: dict) -> Group:
        """The group itself: a copied module belongs to the same ranks."""
        return self

    def shares(self, total: int) -> list[range]:
        """The range of `total` consecutive things that each rank of the group holds; they differ by
        one at most.
        """
        ends = [rank * total // self.size for rank in range(self.size + 1)]
        return [range(first, last) for first, last in itertools.pairwise(ends)]

    def share(self, total: int) -> range:
        """This rank's range."""
        return self.shares(total)[self.rank]


SOLO = Group()  # of one rank: nothing is split


def split_world(rank: int, size: int, tensor_parallel: int) -> tuple[Group, Group]:
    """(data, tensor) groups of `rank` among `size` ranks, of which `tensor_parallel` in a row share
    one replica.

    Ranks in a row are those of one host, where they exchange activations fastest. The ranks of
    `tensor` hold parts of one replica and see the same samples; those of `data` hold the same part
    of each replica.
    """
    if tensor_parallel == 1:
        return Group(rank, size), SOLO
    replicas = size // tensor_parallel
    # Every rank must take part in the making of every group.
    tensor = [
        dist.new_group(list(range(first, first + tensor_parallel)))
        for first in range(0, size, tensor_parallel)
    ]
    data = [
        dist.new_group(list(range(first, size, tensor_parallel)))
        for first in range(tensor_parallel)
    ]
    replica, part = divmod(rank, tensor_parallel)
    return Group(replica, replicas, data[part]), Group(part, tensor_parallel, tensor[replica])
