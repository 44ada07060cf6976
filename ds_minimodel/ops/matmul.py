"""Matrix products that are fast on every device.

torch emulates bf16 products on a CPU that has none, at a third to a fifth of the speed of fp32
ones. There the operands are cast to fp32 for the product, and its result is rounded. What the
backward pass needs is kept in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ds_minimodel.ops.cpu import has_bf16_products


def is_emulated(x: Tensor) -> bool:
    """Whether torch would have to emulate a product of `x`. False where it traces: then the product
    stays whole.
    """
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not has_bf16_products()
    )


def rows_for_few_shapes(num_rows: int, x: Tensor) -> int:
    """The number of rows, at least `num_rows`, that products with tensors like `x` should have.

    Where a CPU has bf16 products, oneDNN compiles one for each shape that it meets, for up to
    twenty times as long as the product takes. So there the number is rounded up to one of at most 8
    in each octave, to 128 at least; elsewhere it stays, and so do the bits.
    """
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or not has_bf16_products():
        return num_rows
    step = max(128, (1 << num_rows.bit_length() - 1) // 8)
    return -(-num_rows // step) * step


def upcast_if_emulated(first: Tensor, *others: Tensor | None) -> tuple:
    """The tensors, in fp32 where torch would have to emulate a product of the first. None stays
    None.
    """
    tensors = (first, *others)
    return tuple(t if t is None else t.float() for t in tensors) if is_emulated(first) else tensors


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b, without a gradient. Where a product is emulated, b may be fp32 already."""
    if not is_emulated(a):
        return torch.matmul(a, b, out=out)
    in_fp32 = torch.matmul(*upcast_if_emulated(a, b))
    return in_fp32.to(a.dtype) if out is None else out.copy_(in_fp32)


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, in place where torch's product takes the dtypes."""
    a, b = upcast_if_emulated(a, b)
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return F.linear(*upcast_if_emulated(x, weight, bias)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        return (
            None if weight is None else product(grad, weight),
            None if x is None else product(rows.T, x.flatten(0, -2)),
            rows.sum(0, dtype=torch.float32).to(grad.dtype) if ctx.needs_input_grad[2] else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias; x (..., I), weight (O, I), bias (O,) -> (..., O)."""
    return _Linear.apply(x, weight, bias) if is_emulated(x) else F.linear(x, weight, bias)


ALL = slice(None)


class _LowRankLinear(torch.autograd.Function):
    """The small products add to the results of the large ones, forward and backward, where they
    lie.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scale: float,
        outputs: slice,
    ) -> Tensor:
        flat, *wide = upcast_if_emulated(x.flatten(0, -2), weight[outputs], bias, down, up)
        low = flat @ wide[2].T
        out = F.linear(flat, *wide[:2]).addmm_(low, wide[3].T, alpha=scale)
        # The parameter itself and no view of it, which at ZeRO 3 would keep what was gathered.
        ctx.save_for_backward(x, weight, down, up, low.to(x.dtype))
        ctx.scale = scale
        ctx.outputs = outputs
        return out.to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, of_bias, *_ = ctx.needs_input_grad
        x, weight, down, up, low = ctx.saved_tensors
        own = weight[ctx.outputs], down, up, low
        rows, flat, *wide = upcast_if_emulated(grad.flatten(0, -2), x.flatten(0, -2), *own)
        grad_low = _times(rows, wide[2], ctx.scale)
        grad_x = (
            (rows @ wide[0]).addmm_(grad_low, wide[1]).to(x.dtype).view(x.shape) if of_x else None
        )
        grad_weight = None
        if of_weight:
            grad_weight = torch.zeros_like(weight)
            grad_weight[ctx.outputs] = product(rows.T, flat).to(weight.dtype)
        return (
            grad_x,
            grad_weight,
            rows.sum(0, dtype=torch.float32).to(grad.dtype) if of_bias else None,
            (grad_low.T @ flat).to(down.dtype),
            _times(rows.T, wide[3], ctx.scale).to(up.dtype),
            None,
            None,
        )


def _times(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """scale * a @ b, in one product."""
    return torch.addmm(a.new_empty(()), a, b, beta=0, alpha=scale)  # of the first nothing is read


def low_rank_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    down: Tensor,
    up: Tensor,
    scale: float,
    outputs: slice = ALL,
) -> Tensor:
    """x (weight[outputs] + scale * up down)^T + bias -> (..., O).

    x (..., I), weight with rows (O, I) at `outputs`, bias (O,), down (R, I), up (O, R). Nothing as
    large as the result is made beside it.
    """
    return _LowRankLinear.apply(x, weight, bias, down, up, scale, outputs)
