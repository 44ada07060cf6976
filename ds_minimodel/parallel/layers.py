"""Layers of which each rank of a group holds a part. Shapes: H hidden, V vocabulary."""

from torch.nn import functional as F

from ds_minimodel import ops

from .mappings import reduce


def row_linear(linear, x, group):
    """The nn.Linear `linear` where each rank holds some inputs of its weight, and x (..., own inputs).

    The bias is whole on every rank, and is added once, to the sum.
    """
    if group.size == 1:
        return linear(x)
    return reduce(ops.linear(x, linear.weight), group) + linear.bias


def embedding(tokens, weight, rows, padding, group):
    """Rows of an embedding table (V, H) by token -> (*tokens.shape, H), whole on every rank.

    weight: the rows in the range `rows`, which this rank holds. Row `padding` gets no gradient.
    """
    elsewhere = (tokens < rows.start) | (tokens >= rows.stop)
    own = (tokens - rows.start).masked_fill(elsewhere, 0)
    own_padding = padding - rows.start if padding in rows else None
    found = F.embedding(own, weight, padding_idx=own_padding)
    return reduce(found.masked_fill(elsewhere[..., None], 0), group)
