"""What autograd keeps of a forward pass, and bytes of tensors' storages."""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that are made within its context, until they are freed: `live`.
    A kernel's own scratch memory is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        # What forgets a storage when it is freed, by its address.
        self._known: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(
        self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None
    ) -> Any:
        for tensor in tensors_in((arguments, options)):
            self._notice(tensor, 0)
        result = op(*arguments, **(options or {}))
        for tensor in tensors_in(result):
            self._notice(tensor, tensor.untyped_storage().nbytes())
        return result

    def _notice(self, tensor: Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._known:
            self.live += size
            self._known[address] = weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        del self._known[address]
        self.live -= size


def tensors_in(values: Any) -> list[Tensor]:
    """Tensors in a nest of lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def saved_bytes(module: torch.nn.Module, batch: Mapping[str, Any]) -> int:
    """Bytes that a forward pass leaves for the backward pass."""
    with Allocations() as counter:
        loss = module(batch).mean()
        assert loss.requires_grad
        return counter.live
