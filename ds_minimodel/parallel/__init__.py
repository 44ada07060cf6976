"""Tensor parallelism: groups of ranks as explicit objects, and the functions by which a model is split over one.

A group is always an argument. With a group of one rank every function here is the plain operation, bit for bit,
and costs nothing. The scheme is Megatron-LM's (Shoeybi et al. 2019, section 3): the first linear layer of a
sublayer is split by outputs, the second by inputs, so that each sublayer exchanges activations once forward and
once backward.
"""

from .cross_entropy import linear_cross_entropy, token_losses
from .group import SOLO, Group, split_world
from .layers import embedding, row_linear
from .mappings import copy, gather
from .shard import full_shape, full_tensor, own_part, shard_parameter

__all__ = [
    "SOLO",
    "Group",
    "copy",
    "embedding",
    "full_shape",
    "full_tensor",
    "gather",
    "linear_cross_entropy",
    "own_part",
    "row_linear",
    "shard_parameter",
    "split_world",
    "token_losses",
]
