"""The operators of a pass through a module, with the work of each: FLOPs of products, bytes of all else.

A dispatch mode sees every operator that torch calls, on tensors without memory as on a device: what a step takes is
counted from the modules that it trains, and what a device gives (calibration.py) from the same operators there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.ops.cross_entropy import forward_by_chunks
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.parallel.mappings import EXCHANGES

PRODUCT, COPY, VIEW = "product", "copy", "view"
ALL_REDUCE, ALL_GATHER = "all-reduce in a replica", "all-gather in a replica"  # of tensor parallelism
DROPS = " with dropout"  # ends the kind of one of ours that has row keys, and so takes longer
PRODUCTS = {
    "mm": 2,
    "bmm": 2,
    "matmul": 2,
    "addmm": 3,
    "addmm_": 3,
    "baddbmm": 3,
}  # name -> where the second factor stands, from 1
# Of the first argument these read, or write, as much as the result or the source is large.
READ_IN_PART = {"embedding", "gather", "index", "index_select"}
WRITTEN_IN_PART = {"index_add_", "index_copy_", "scatter_add_", "index_put_", "embedding_dense_backward"}
NOTHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "alias",
    "numpy_T",
    "promote_types",
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Operator(NamedTuple):
    """One call of an operator.

    kind: PRODUCT, VIEW, ALL_REDUCE, ALL_GATHER, the name of one of ours, or COPY for all else, which mostly reads and
    writes. flops: of products and of attention. bytes: read and written; of an exchange, sent by each rank. size: what
    a device's rate for the kind depends on (Figures.rates).
    """

    kind: str
    precision: str
    flops: float
    bytes: float
    size: float

    @property
    def work(self) -> float:
        """What a rate of this kind counts: FLOPs, or bytes where there are none."""
        return self.flops or self.bytes


class Recorder(TorchDispatchMode):
    """Counts the operators called within its context. operators: how often each was."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[Operator] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        if op is torch.ops.dsmm.linear_cross_entropy.default:
            with self:  # of products and of the compiled part, which count each
                return forward_by_chunks(*arguments)
        return self.call(op, arguments, options or {})

    def call(self, op: Any, arguments: tuple, options: dict) -> Any:
        """Call the operator and count it."""
        result = op(*arguments, **options)
        self.operators[operator_of(op, arguments, result)] += 1
        return result


def on_meta_device(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with tensors that have no memory."""
    return {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def operators_of(
    module: torch.nn.Module,
    batch: dict[str, Any],
    device: str,
    trains: bool = True,
    capability: tuple[int, int] | None = None,
) -> Counter[Operator]:
    """The operators of one micro-batch through `module`, on the meta device; forward and backward where it trains.

    batch, device, capability: as of trace.trace. Without `trains` the module gives logits, as in evaluation.
    """
    batch = on_meta_device(batch)
    with ops.meta_stands_for(device, capability), Recorder() as recorder:
        if trains:
            module(batch).mean().backward()
        else:
            with torch.inference_mode():
                cast(Any, module).logits(batch)
    for parameter in module.parameters():
        parameter.grad = None
    return recorder.operators


def operators_in(op: Any, arguments: tuple, result: Any) -> Iterable[Operator]:
    """The operators that a call on the meta device stands for: itself, but for the loss."""
    if op is not torch.ops.dsmm.linear_cross_entropy.default:
        return [operator_of(op, arguments, result)]
    with Recorder() as recorder:
        forward_by_chunks(*arguments)
    return recorder.operators.elements()


def operator_of(op: Any, arguments: tuple, result: Any) -> Operator:
    """The Operator that a call was, from its arguments and its result."""
    name, given, made = op._overloadpacket.__name__, tensors_in(arguments), tensors_in(result)
    floating = [tensor for tensor in (*given, *made) if tensor.is_floating_point()]
    precision = NAMES.get(floating[0].dtype, "fp32") if floating else "fp32"
    if name in PRODUCTS or name == "linear":
        second = PRODUCTS.get(name, 2)
        left, right = arguments[second - 2], arguments[second - 1]
        right = right.mT if name == "linear" else right
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        flops = 2.0 * left.numel() * columns
        moved = _bytes(left) + _bytes(right) + _bytes(made[0])
        return Operator(PRODUCT, NAMES.get(left.dtype, "fp32"), flops, moved, min(rows, inner, columns))
    if name in NOTHING or op.is_view:
        return Operator(VIEW, precision, 0, 0, 1)
    if op.namespace == EXCHANGES:
        (whole,), ranks = map(_bytes, given), arguments[1]
        if name == "all_reduce":
            return Operator(ALL_REDUCE, precision, 0, 2 * whole * (ranks - 1) / ranks, whole)
        return Operator(ALL_GATHER, precision, 0, whole * (ranks - 1), whole)
    moved = sum(map(_bytes, given)) + sum(map(_bytes, made))  # what is changed in place is given, and made
    if op.namespace == "dsmm":
        drops = any(
            given is not None
            for argument, given in zip(op._schema.arguments, arguments, strict=False)
            if argument.name == "row_keys"
        )
        kind = name + DROPS if drops else name
        if "attention" in name:
            return _attention(name, kind, precision, arguments, moved)
        return Operator(kind, precision, 0, moved, moved)
    if name in READ_IN_PART:
        moved = 2 * sum(map(_bytes, made))
    elif name in WRITTEN_IN_PART:
        moved = 3 * min(map(_bytes, given))
        if name == "embedding_dense_backward":
            moved = 3 * _bytes(given[0]) + sum(map(_bytes, made))
        elif floating:
            moved = 3 * min(_bytes(tensor) for tensor in floating)
    return Operator(COPY, precision, 0, moved, max(moved, 1))


def _attention(name: str, kind: str, precision: str, arguments: tuple, moved: float) -> Operator:
    projected, queries = arguments[-6:-4]
    batch, keys, width = projected.shape
    hidden = width // 3 if queries is None else width // 2
    rows = keys if queries is None else queries.shape[1]
    products = 4 if name.endswith("backward") else 2
    return Operator(kind, precision, products * 2.0 * batch * rows * keys * hidden, moved, keys)


def tensors_in(nested: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts. (torch's pytree does it in five times the time.)"""
    if isinstance(nested, torch.Tensor):
        return [nested]
    if isinstance(nested, dict):
        nested = nested.values()
    elif not isinstance(nested, (list, tuple)):
        return []
    return [tensor for value in nested for tensor in tensors_in(value)]


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor that are in memory: an expanded one has each once."""
    sizes = (length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or length < 2)
    return math.prod(sizes) * tensor.element_size()
