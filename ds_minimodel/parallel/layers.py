"""Layers of which each rank of a group holds a part. Shapes: H hidden, V vocabulary."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ds_minimodel import ops

from .group import Group
from .mappings import reduce


def row_linear(linear: nn.Linear, x: Tensor, group: Group) -> Tensor:
    """The nn.Linear `linear` where each rank holds some inputs of its weight, and x (..., own inputs).

    The bias, where there is one, is whole on every rank, and is added once, to the sum.
    """
    if group.size == 1:
        return linear(x)
    summed = reduce(ops.linear(x, linear.weight), group)
    return summed if linear.bias is None else summed + linear.bias


def embedding(tokens: Tensor, weight: Tensor, rows: range, group: Group) -> Tensor:
    """Rows of an embedding table (V, H) by token -> (*tokens.shape, H), whole on every rank.

    weight: the rows in the range `rows`, which this rank holds.
    """
    on_other_ranks = (tokens < rows.start) | (tokens >= rows.stop)
    own = (tokens - rows.start).masked_fill(on_other_ranks, 0)
    found = F.embedding(own, weight)
    return reduce(found.masked_fill(on_other_ranks[..., None], 0), group)
