"""What code allocates and sends, seen from below: every tensor that torch makes, every collective."""

import weakref

import torch
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode


class Ledger(TorchDispatchMode):
    """Under it every new tensor counts until it is freed; tensors from before count nothing.

    live, peak: bytes now, and the most at once (`peak` may be set back to `live`). A kernel's own scratch
    memory is not seen. sent: (collective, bytes of the whole tensor, ranks) in order, as c10d's operators are
    called. Works on meta tensors too, which have sizes but no memory.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.sent = []
        self._known = {}  # address of a storage -> what forgets it when the storage is freed

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        for tensor in tensors_in((arguments, options)):
            self._notice(tensor, 0)
        result = op(*arguments, **(options or {}))
        if op.namespace == "c10d":
            sizes = [sum(map(bytes_of, tensors_in(argument))) for argument in arguments]
            group = next(
                ProcessGroup.unbox(argument) for argument in arguments if isinstance(argument, torch.ScriptObject)
            )
            self.sent.append((op._overloadpacket.__name__, max(sizes, default=0), group.size()))
        for tensor in tensors_in(result):
            self._notice(tensor, tensor.untyped_storage().nbytes())
        return result

    def _notice(self, tensor, size):
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._known:
            self.live += size
            self.peak = max(self.peak, self.live)
            self._known[address] = weakref.finalize(storage, self._forget, address, size)
            self._known[address].atexit = False

    def _forget(self, address, size):
        del self._known[address]
        self.live -= size


def tensors_in(nested):
    """The tensors in nested lists, tuples and dicts. (torch's pytree does it in five times the time.)"""
    if isinstance(nested, torch.Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, (list, tuple)):
        return []
    return [tensor for value in nested for tensor in tensors_in(value)]


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def storage_bytes(tensors, without=()):
    """Bytes of the storages of `tensors`, each counted once; those of the tensors `without` are left out."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    for tensor in without:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())


def saving_to(saved):
    """Context in which what autograd keeps for the backward pass is added to the list `saved`, too."""

    def keep(tensor):
        saved.append(tensor.detach())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
