"""Rows of an embedding table. Shapes: tokens (...) int64, weight (V, H)."""
import torch
import torch.nn.functional as F


def embedding(tokens, weight, padding):
    """Rows of `weight` by token -> (..., H). Row `padding` gets no gradient.

    On the CPU torch adds up the gradient of a bf16 table in bf16. A token that comes hundreds of times in a
    batch, as <mask> does, loses a fiftieth of its gradient so. Here it is added up in float32, over the rows
    that the batch has, and rounded once.
    """
    if weight.device.type != "cpu" or weight.dtype.itemsize > 2 or not weight.requires_grad:
        return F.embedding(tokens, weight, padding_idx=padding)
    rows, place = tokens.unique(return_inverse=True)
    table = weight.index_select(0, rows).float()
    table = torch.where((rows == padding)[:, None], table.detach(), table)
    return F.embedding(place, table).to(weight.dtype)
