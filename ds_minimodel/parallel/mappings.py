"""Exchanges of activations within a group, in pairs whose backward passes are each other's forward passes.

        forward                     backward                    where
copy    as it is                    sum over ranks              the same input goes into a part of a layer on each rank
reduce  sum over ranks              as it is                    partial sums come out of it
gather  join the last dimension     this rank's part            each rank has made some of the outputs

In gather the ranks have equal parts. With a group of one rank all three return what they are given.
Of meta tensors, which a plan traces (engine/trace.py), nothing is exchanged: they have shapes only. After
Megatron-core's tensor_parallel/mappings.py.
"""

import torch
import torch.distributed as dist


def copy(x, group):
    return x if group.size == 1 else _Copy.apply(x, group)


def reduce(x, group):
    return x if group.size == 1 else _Reduce.apply(x, group)


def gather(x, group):
    return x if group.size == 1 else _Gather.apply(x, group)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return _sum(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return _sum(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _join(x, group)

    @staticmethod
    def backward(ctx, grad):
        return _own(grad, ctx.group), None


def _sum(x, group):
    total = x.clone(memory_format=torch.contiguous_format)  # the caller's tensor may have other readers
    if not x.is_meta:
        dist.all_reduce(total, group=group.handle)
    return total


def _join(x, group):
    return torch.cat(all_gather(x.contiguous(), group), -1)


def all_gather(x, group):
    """The tensors of all ranks, in their order; x is contiguous and of the same shape on each."""
    parts = [torch.empty_like(x) for _ in range(group.size)]
    if not x.is_meta:
        dist.all_gather(parts, x, group=group.handle)
    return parts


def _own(x, group):
    return x.chunk(group.size, -1)[group.rank].contiguous()
