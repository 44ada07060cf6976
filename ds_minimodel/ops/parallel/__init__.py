"""Tensor parallelism: groups of ranks, exchanges between them, parts of parameters.

A group is always an argument. With a group of one rank every function here is the plain operation,
bit for bit, and costs nothing.
"""

from ds_minimodel.ops.parallel.group import SOLO, Group, split_world
from ds_minimodel.ops.parallel.shard import fill, full_shape, full_tensor, own_part

__all__ = ["SOLO", "Group", "fill", "full_shape", "full_tensor", "own_part", "split_world"]
