"""What autograd keeps of a forward pass, and bytes of tensors' storages."""

from collections.abc import Iterable

import torch
from torch import Tensor


def storage_bytes(tensors: Iterable[Tensor], without: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages of `tensors`, each counted once; those of the tensors `without` are
    left out.
    """
    sizes = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
    }
    for tensor in without:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())


def saving_to(saved: list[Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Context in which what autograd keeps for the backward pass is added to the list `saved`,
    too.
    """

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
