"""One forward and backward pass on meta tensors: which parameters do what, and what the pass allocates."""

import copy
from dataclasses import dataclass

import torch

from ds_minimodel import ops
from ds_minimodel.engine.planning.ledger import Ledger, saving_to, storage_bytes, tensors_in

# What a parameter is, by what trains; in rising order where it is read at several places.
PREFIX, PASS_THROUGH, TRAINABLE = "prefix", "pass-through", "trainable"
RANK = {PREFIX: 0, PASS_THROUGH: 1, TRAINABLE: 2}


@dataclass(frozen=True)
class Trace:
    """kinds: {name of parameter: kind}. The rest in bytes, for one micro-batch.

    activations: what autograd keeps from the forward for the backward pass, parameters left out.
    peak: the most that the two passes allocate at once, activations and gradients included.
    """

    kinds: dict
    activations: int
    peak: int

    def joined(self, other):
        """Of two batches of one run: the higher kinds and the larger numbers."""
        kinds = {name: max(kind, other.kinds[name], key=RANK.get) for name, kind in self.kinds.items()}
        return Trace(kinds, max(self.activations, other.activations), max(self.peak, other.peak))


def on_meta(module, dtype):
    """A copy of `module` without memory: parameters and buffers on the meta device, floating ones as `dtype`."""

    def empty(tensor):
        return torch.empty_like(tensor, device="meta", dtype=dtype if tensor.is_floating_point() else tensor.dtype)

    memo = {
        id(parameter): torch.nn.Parameter(empty(parameter), parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): empty(buffer) for buffer in module.buffers()}
    return copy.deepcopy(module, memo)


def trace(module, batch, gradients_leave, device):
    """Trace of one micro-batch through `module`, which is on the meta device with `requires_grad` set.

    module: `module(batch)` gives one sum of losses or several. batch: dict of tensors, on any device; only
    their shapes and types count. gradients_leave: each gradient is freed as soon as it is whole, because it is
    added to another or moved to a buffer; else it stays beside its parameter. device: "cpu" or "cuda", whose way
    the operators go.
    """
    batch = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
    parameters = dict(module.named_parameters())
    trainable = [parameter for parameter in parameters.values() if parameter.requires_grad]
    saved = []
    with ops.meta_stands_for(device), _Reader(parameters) as reader, saving_to(saved):
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
    return Trace(reader.kinds(), activations, reader.peak)


def _forget_gradient(parameter):
    parameter.grad = None


class _Reader(Ledger):
    """A ledger that also sees what each parameter is read together with.

    A frozen parameter belongs to the prefix as long as no operator that reads it gets a tensor that has a
    gradient: then nothing below it trains.
    """

    def __init__(self, parameters):
        super().__init__()
        self.parameters = parameters
        self.passing = set()
        # Storage -> parameters that it is made of and of nothing else: their views, and copies in another type.
        self.made_of = {parameter.untyped_storage()._cdata: {name} for name, parameter in parameters.items()}
        self.copies = []  # kept, so that no other storage gets their addresses

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        inputs = tensors_in((arguments, options))
        read = [self.made_of.get(tensor.untyped_storage()._cdata, set()) for tensor in inputs]
        has_gradient = any(tensor.requires_grad for tensor in inputs)
        result = super().__torch_dispatch__(op, types, arguments, options)
        if has_gradient:
            self.passing.update(*read)
        if read and all(read):
            for tensor in tensors_in(result):
                self.made_of.setdefault(tensor.untyped_storage()._cdata, set().union(*read))
                self.copies.append(tensor)
        return result

    def kinds(self):
        return {
            name: TRAINABLE if parameter.requires_grad else PASS_THROUGH if name in self.passing else PREFIX
            for name, parameter in self.parameters.items()
        }
