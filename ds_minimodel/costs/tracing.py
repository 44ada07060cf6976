"""A forward and a backward pass without memory, and the memory that they would allocate.

A dispatch mode sees every operator that torch calls, on the meta device as on a real one: what a
step holds is counted from the module that it trains.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops


class Trace(NamedTuple):
    """Findings of a traced pass; bytes for one micro-batch.

    activations: what the forward pass leaves in memory for the backward pass, parameters left out.
    peak: the most that the two passes allocate at once, activations and gradients included.
    """

    activations: int
    peak: int


def on_meta(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy of `module` without memory: parameters and buffers on the meta device, floating ones
    as `dtype`.
    """
    return copy.deepcopy(module).to("meta", dtype)


def trace(
    module: torch.nn.Module, batch: dict[str, Any], gradients_leave: bool, device: str
) -> Trace:
    """Trace of one micro-batch through `module`, which is on the meta device with `requires_grad`
    set.

    module: `module(batch)` gives one sum of losses or several. batch: dict of tensors, on any
    device; only their shapes and types count. gradients_leave: each gradient is freed as soon as it
    is whole, because it is added to another or moved to a buffer; else it stays beside its
    parameter. device: "cpu" or "cuda", whose way the operators go.
    """
    batch = {
        name: value.to("meta") if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with ops.meta_stands_for(device), Allocations() as counter:
        loss = module(batch).mean()
    activations = counter.live
    hooks = [
        parameter.register_post_accumulate_grad_hook(_forget_gradient)
        for parameter in trained
        if gradients_leave
    ]
    with ops.meta_stands_for(device), counter:
        loss.backward()
    for hook in hooks:
        hook.remove()
    for parameter in trained:
        parameter.grad = None
    return Trace(activations, counter.peak)


def _forget_gradient(parameter: Tensor) -> None:
    parameter.grad = None


class Allocations(TorchDispatchMode):
    """Counts allocations: within its context a new tensor counts until it is freed; one from before
    does not count.

    live, peak: bytes now, and the most at once. A kernel's own scratch memory is not seen. Works on
    meta tensors too, which have sizes but no memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[
            int, weakref.finalize
        ] = {}  # address of a storage -> what forgets it when it is freed

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
            self.peak = max(self.peak, self.live)
            self._known[address] = weakref.finalize(storage, self._forget, address, size)
            self._known[address].atexit = False

    def _forget(self, address: int, size: int) -> None:
        del self._known[address]
        self.live -= size


def tensors_in(nested: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts. (torch's pytree does it in five times the
    time.)
    """
    if isinstance(nested, Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, (list, tuple)):
        return []
    return [tensor for value in nested for tensor in tensors_in(value)]
