"""Registration of operators with torch: schema, reference, fake and gradient.

Every operator lives in the namespace `dsmm`. Its torch reference serves any device and dtype (key
CompositeExplicitAutograd); compiled code, where it is built, serves the dtypes that it knows on its
device (loading.py) and leaves the others to the reference, which it finds in the namespace
`dsmm_reference`. A backward pass is an operator of its own, so that it too can be compiled, traced
and replaced.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAMESPACE = "dsmm"
REFERENCE_NAMESPACE = "dsmm_reference"


def define(schema: str, reference: Callable, fake: Callable | None = None) -> Callable:
    """Register one operator and return it as a callable.

    Args:
        schema: the torch schema without namespace, `name(Tensor x, …) -> Tensor`.
        reference: the implementation in torch, right for every device and dtype.
        fake: what gives outputs without their values, for tracing; None: the reference does, on
            tensors without memory.
    """
    name, signature = schema.split("(", 1)
    shapes_of = fake or reference

    @functools.wraps(shapes_of)
    def checked_fake(*arguments: Any) -> Any:
        # One tensor without memory would make the fake serve all others too, and leave the results
        # unwritten.
        devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
        if len(devices) > 1:
            raise ValueError(
                f"{name}: arguments on different devices: {', '.join(sorted(map(str, devices)))}"
            )
        return shapes_of(*arguments)

    for namespace in (NAMESPACE, REFERENCE_NAMESPACE):
        qualified = f"{namespace}::{name}"
        torch.library.define(qualified, "(" + signature, tags=torch.Tag.pt2_compliant_tag)
        torch.library.impl(qualified, "CompositeExplicitAutograd", reference)
        torch.library.register_fake(qualified, checked_fake)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def differentiate(
    op: Any, setup_context: Callable, backward: Callable, outputs: int = 1
) -> Callable:
    """Give an operator a gradient, and return a callable that gives its differentiable outputs.

    Args:
        op: what `define` has returned.
        setup_context: setup_context(ctx, inputs, output), which saves what the backward pass needs.
        backward: backward(ctx, *grads); one of several gradients may be None.
        outputs: how many of the first outputs are differentiable. The others serve the backward
            pass alone.

    Returns:
        The callable. It returns one output as it is, several as a tuple.
    """

    def visible(output: Any) -> Any:
        if not isinstance(output, tuple):
            return output
        return output[0] if outputs == 1 else output[:outputs]

    def save(ctx: Any, inputs: tuple, output: Any) -> None:
        # Otherwise torch fills in zeros as gradients of the outputs that serve the backward alone.
        ctx.set_materialize_grads(False)
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(*output[outputs:])
        setup_context(ctx, inputs, output)

    def run(ctx: Any, *grads: Tensor | None) -> tuple:
        grads = grads[:outputs]
        if all(grad is None for grad in grads):
            return (None,) * len(op._schema.arguments)
        return backward(ctx, *grads)

    torch.library.register_autograd(op, run, setup_context=save)

    # That gradient serves tracing. Without tracing, a Function of the older kind saves some 60 us
    # of Python for each forward and backward pass, more than the work on a small tensor.
    def forward(ctx: Any, *inputs: Any) -> Any:
        output = op(*inputs)
        ctx.set_materialize_grads(False)
        setup_context(ctx, inputs, output)
        return visible(output)

    function: Any = type(
        op._schema.name,
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(run)},
    )

    def apply(*inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return visible(op(*inputs))
        return function.apply(*inputs)

    return apply


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums are kept in: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)
