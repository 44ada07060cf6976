"""Exchanges of activations within a group, each with the exchange that is its backward pass.

          forward                     backward          where
copy      identity                    sum over ranks    each rank has a part of a layer
reduce    sum over ranks              identity          partial sums come out of it
gather    concatenate last dimension  this rank's part  each rank has made some of the outputs

In gather the ranks have equal parts. With a group of one rank all three return what they are given.
Meta tensors, which have shapes only, are not exchanged. After Megatron-core's
tensor_parallel/mappings.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ds_minimodel.ops.parallel.group import Group


def copy(x: Tensor, group: Group) -> Tensor:
    """Return x, the input of a layer's parts on all ranks; its gradient is summed over them."""
    return x if group.size == 1 else _Copy.apply(x, group)


def reduce(x: Tensor, group: Group) -> Tensor:
    """Return the sum of the ranks' x."""
    return x if group.size == 1 else _Reduce.apply(x, group)


def gather(x: Tensor, group: Group) -> Tensor:
    """Return the ranks' x, concatenated along the last dimension."""
    return x if group.size == 1 else _Gather.apply(x, group)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return torch.cat(all_gather(x.contiguous(), group), -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.chunk(ctx.group.size, -1)[ctx.group.rank].contiguous(), None


def _sum(x: Tensor, group: Group) -> Tensor:
    """Return the sum of the ranks' x, which stay as they are: others may read them."""
    total = x.clone(memory_format=torch.contiguous_format)
    if not x.is_meta:
        dist.all_reduce(total, group=group.handle)
    return total


def all_gather(x: Tensor, group: Group) -> list[Tensor]:
    """Return the tensors of all ranks, in their order.

    Args:
        x: this rank's tensor, contiguous and of the same shape on each.
        group: the ranks.
    """
    parts = [torch.empty_like(x) for _ in range(group.size)]
    if not x.is_meta:
        dist.all_gather(parts, x, group=group.handle)
    return parts
