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
    """Return whether torch would have to emulate a product of `x`.

    Where torch traces it is False, so that the product stays whole.
    """
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not has_bf16_products()
    )


def rows_for_few_shapes(num_rows: int, x: Tensor) -> int:
    """Return how many rows, at least `num_rows`, products with tensors like `x` should have.

    Where a CPU has bf16 products, oneDNN compiles one for each shape that it meets, for up to
    twenty times as long as the product takes. So there the count is rounded up to one of at most 8
    in each octave, to 128 at least; elsewhere it stays, and so do the bits.
    """
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or not has_bf16_products():
        return num_rows
    step = max(128, (1 << num_rows.bit_length() - 1) // 8)
    return -(-num_rows // step) * step


def upcast_if_emulated(first: Tensor, *others: Tensor | None) -> tuple:
    """Return the tensors, in fp32 where torch would have to emulate a product of the first.

    What is None stays None.
    """
    tensors = (first, *others)
    if not is_emulated(first):
        return tensors
    return tuple(t if t is None else t.float() for t in tensors)


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a @ b, without a gradient.

    Args:
        a: (..., M, K).
        b: (..., K, N); it may be fp32 already where a product is emulated.
        out: where the product is written to; None: a new tensor.
    """
    if not is_emulated(a):
        return torch.matmul(a, b, out=out)
    in_fp32 = torch.matmul(*upcast_if_emulated(a, b))
    return in_fp32.to(a.dtype) if out is None else out.copy_(in_fp32)


def add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, by one product where torch's takes the dtypes."""
    a, b = upcast_if_emulated(a, b)
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


class _Linear(torch.autograd.Function):
    """`linear` in bf16 where torch would emulate its products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        return F.linear(*upcast_if_emulated(x, weight, bias)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = None if weight is None else product(grad, weight)
        grad_weight = None if x is None else product(rows.T, x.flatten(0, -2))
        grad_bias = None
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0, dtype=torch.float32).to(grad.dtype)
        return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias (..., O).

    Args:
        x: (..., I).
        weight: (O, I).
        bias: (O,), or None.
    """
    return _Linear.apply(x, weight, bias) if is_emulated(x) else F.linear(x, weight, bias)


# All rows of a weight, for `low_rank_linear`.
ALL = slice(None)


class _LowRankLinear(torch.autograd.Function):
    """`low_rank_linear`, whose small products are added in place to the large ones' results."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        lora_A: Tensor,
        lora_B: Tensor,
        scale: float,
        outputs: slice,
    ) -> Tensor:
        x_TI, weight_OI, bias_O, A_RI, B_OR = upcast_if_emulated(
            x.flatten(0, -2), weight[outputs], bias, lora_A, lora_B
        )
        low_TR = x_TI @ A_RI.T
        out_TO = F.linear(x_TI, weight_OI, bias_O).addmm_(low_TR, B_OR.T, alpha=scale)
        # The parameter itself and no view of it, which at ZeRO 3 would keep what was gathered.
        ctx.save_for_backward(x, weight, lora_A, lora_B, low_TR.to(x.dtype))
        ctx.scale = scale
        ctx.outputs = outputs
        return out_TO.to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        x, weight, lora_A, lora_B, low = ctx.saved_tensors
        grad_TO, x_TI, weight_OI, A_RI, B_OR, low_TR = upcast_if_emulated(
            grad.flatten(0, -2), x.flatten(0, -2), weight[ctx.outputs], lora_A, lora_B, low
        )
        grad_low_TR = _times(grad_TO, B_OR, ctx.scale)
        grad_x = None
        if needs_x:
            grad_x_TI = (grad_TO @ weight_OI).addmm_(grad_low_TR, A_RI)
            grad_x = grad_x_TI.to(x.dtype).view(x.shape)
        grad_weight = None
        if needs_weight:
            grad_weight = torch.zeros_like(weight)
            grad_weight[ctx.outputs] = product(grad_TO.T, x_TI).to(weight.dtype)
        grad_bias = None
        if needs_bias:
            grad_bias = grad_TO.sum(0, dtype=torch.float32).to(grad.dtype)
        grad_A = (grad_low_TR.T @ x_TI).to(lora_A.dtype)
        grad_B = _times(grad_TO.T, low_TR, ctx.scale).to(lora_B.dtype)
        return grad_x, grad_weight, grad_bias, grad_A, grad_B, None, None


def _times(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * a @ b, by one product; with beta 0 the first argument is not read."""
    return torch.addmm(a.new_empty(()), a, b, beta=0, alpha=scale)


def low_rank_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lora_A: Tensor,
    lora_B: Tensor,
    scale: float,
    outputs: slice = ALL,
) -> Tensor:
    """Return x (weight[outputs] + scale * lora_B lora_A)^T + bias (..., O).

    Nothing as large as the result is made beside it.

    Args:
        x: (..., I).
        weight: (., I), of which O rows are those of `outputs`.
        bias: (O,), or None.
        lora_A: (R, I).
        lora_B: (O, R).
        scale: of the update.
        outputs: the rows of `weight` that are used.
    """
    return _LowRankLinear.apply(x, weight, bias, lora_A, lora_B, scale, outputs)
