"""A forward and a backward pass on meta tensors: kinds of parameters, memory that is allocated, operators."""

from __future__ import annotations

import copy
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.engine.planning.operators import Operator, on_meta_device, operators_in, tensors_in

# Kinds of parameters, by what trains; the highest counts where a parameter is read at several places.
PREFIX, PASS_THROUGH, TRAINABLE = "prefix", "pass-through", "trainable"
RANK = {PREFIX: 0, PASS_THROUGH: 1, TRAINABLE: 2}


class Trace(NamedTuple):
    """Findings of a traced pass. kinds: {name of parameter: kind}. The rest in bytes, for one micro-batch.

    activations: what autograd keeps from the forward for the backward pass, parameters left out.
    peak: the most that the two passes allocate at once, activations and gradients included. operators: how often each
    is called.
    """

    kinds: dict[str, str]
    activations: int
    peak: int
    operators: Mapping[Operator, int]

    def joined(self, other: Trace) -> Trace:
        """The Trace of two batches of one run: the higher kinds, the larger numbers, and this one's operators."""
        kinds = {name: max(kind, other.kinds[name], key=RANK.__getitem__) for name, kind in self.kinds.items()}
        return Trace(kinds, max(self.activations, other.activations), max(self.peak, other.peak), self.operators)


def on_meta(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy of `module` without memory: parameters and buffers on the meta device, floating ones as `dtype`."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="meta", dtype=dtype if tensor.is_floating_point() else tensor.dtype)

    memo: dict[int, torch.Tensor] = {
        id(parameter): torch.nn.Parameter(empty(parameter), parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): empty(buffer) for buffer in module.buffers()}
    return copy.deepcopy(module, memo)


def trace(
    module: torch.nn.Module,
    batch: dict[str, Any],
    gradients_leave: bool,
    device: str,
    capability: tuple[int, int] | None = None,
) -> Trace:
    """Trace of one micro-batch through `module`, which is on the meta device with `requires_grad` set.

    module: `module(batch)` gives one sum of losses or several. batch: dict of tensors, on any device; only
    their shapes and types count. gradients_leave: each gradient is freed as soon as it is whole, because it is
    added to another or moved to a buffer; else it stays beside its parameter. device: "cpu" or "cuda", whose way
    the operators go; capability: of the GPU, by default of this machine's.
    """
    batch = on_meta_device(batch)
    parameters = dict(module.named_parameters())
    trainable = [parameter for parameter in parameters.values() if parameter.requires_grad]
    saved: list[torch.Tensor] = []
    with ops.meta_stands_for(device, capability), _Reader(parameters) as reader, saving_to(saved):
        loss = module(batch).mean()
    activations = storage_bytes(saved, without=parameters.values())
    saved.clear()
    hooks = [
        parameter.register_post_accumulate_grad_hook(_forget_gradient) for parameter in trainable if gradients_leave
    ]
    with reader:
        loss.backward()
    for hook in hooks:
        hook.remove()
    for parameter in trainable:
        parameter.grad = None
    return Trace(reader.kinds(), activations, reader.peak, reader.operators)


def _forget_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


class Allocations(TorchDispatchMode):
    """Counts allocations: within its context a new tensor counts until it is freed; one from before does not count.

    live, peak: bytes now, and the most at once. A kernel's own scratch memory is not seen. Works on meta tensors too,
    which have sizes but no memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.finalize] = {}  # address of a storage -> what forgets it when it is freed

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        for tensor in tensors_in((arguments, options)):
            self._notice(tensor, 0)
        result = op(*arguments, **(options or {}))
        for tensor in tensors_in(result):
            self._notice(tensor, tensor.untyped_storage().nbytes())
        return result

    def _notice(self, tensor: torch.Tensor, size: int) -> None:
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


def storage_bytes(tensors: Iterable[torch.Tensor], without: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the storages of `tensors`, each counted once; those of the tensors `without` are left out."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    for tensor in without:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())


def saving_to(saved: list[torch.Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Context in which what autograd keeps for the backward pass is added to the list `saved`, too."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.detach())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


class _Reader(Allocations):
    """Counts allocations and operators, and records what each parameter is read together with.

    A frozen parameter belongs to the prefix as long as no operator that reads it gets a tensor that has a
    gradient: then nothing below it trains.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter]):
        super().__init__()
        self.parameters = parameters
        self.passing: set[str] = set()
        self.operators: Counter[Operator] = Counter()
        # Storage -> parameters that it is made of and of nothing else: their views, and copies in another type.
        self.made_of = {parameter.untyped_storage()._cdata: {name} for name, parameter in parameters.items()}
        self.copies: list[torch.Tensor] = []  # kept, so that no other storage gets their addresses

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        inputs = tensors_in((arguments, options))
        read = [self.made_of.get(tensor.untyped_storage()._cdata, set()) for tensor in inputs]
        has_gradient = any(tensor.requires_grad for tensor in inputs)
        result = super().__torch_dispatch__(op, types, arguments, options)
        self.operators.update(operators_in(op, arguments, result))
        if has_gradient:
            self.passing.update(*read)
        if read and all(read):
            for tensor in tensors_in(result):
                self.made_of.setdefault(tensor.untyped_storage()._cdata, set().union(*read))
                self.copies.append(tensor)
        return result

    def kinds(self) -> dict[str, str]:
        return {
            name: TRAINABLE if parameter.requires_grad else PASS_THROUGH if name in self.passing else PREFIX
            for name, parameter in self.parameters.items()
        }
