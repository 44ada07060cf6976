"""Bytes that one rank sends over the wire, counted at torch.distributed's collectives."""

import functools
import inspect

import torch
import torch.distributed as dist

# Collective -> (argument with the whole payload, how often a ring of W ranks sends (W - 1) / W of it).
COLLECTIVES = {
    "all_reduce": ("tensor", 2),
    "reduce": ("tensor", 1),
    "broadcast": ("tensor", 1),
    "all_gather_into_tensor": ("output_tensor", 1),
    "reduce_scatter_tensor": ("input", 1),
    "all_gather": ("tensor_list", 1),
    "reduce_scatter": ("input_list", 1),
}


class Traffic:
    """Counts from its making on, for the rest of the process; make it before the ranks are started."""

    def __init__(self):
        self.bytes = 0.0
        for name, (argument, times) in COLLECTIVES.items():
            setattr(dist, name, self._counted(getattr(dist, name), argument, times))

    def _counted(self, collective, argument, times):
        signature = inspect.signature(collective)

        @functools.wraps(collective)
        def counted(*arguments, **named):
            given = signature.bind(*arguments, **named).arguments
            payload = given[argument]
            tensors = [payload] if isinstance(payload, torch.Tensor) else payload
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            world_size = dist.get_world_size(given.get("group"))
            self.bytes += times * size * (world_size - 1) / world_size
            return collective(*arguments, **named)

        return counted
