"""Tensor parallelism: groups of ranks as explicit objects, and `split_model`, which cuts a built model for one.

A group is always an argument. With a group of one rank every function here is the plain operation, bit for bit,
and costs nothing.
"""

from .group import SOLO, Group, split_world
from .shard import full_shape, full_tensor, own_part
from .split import split_model

__all__ = ["SOLO", "Group", "full_shape", "full_tensor", "own_part", "split_model", "split_world"]
