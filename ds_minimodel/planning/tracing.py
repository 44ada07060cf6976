"""A forward and a backward pass without memory: the operators that torch calls, and the memory that they allocate.

Dispatch modes see every operator, on the meta device as on a real one: what a step takes is counted from the module
that it trains, and what a device gives (calibration.py) from the same operators there.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ds_minimodel import ops
from ds_minimodel.bodies.config import keys_seen
from ds_minimodel.ops.cross_entropy import forward_by_chunks
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.parallel.mappings import EXCHANGES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Trace(NamedTuple):
    """Findings of a traced pass; bytes for one micro-batch.

    activations: what autograd keeps from the forward for the backward pass, parameters left out.
    peak: the most that the two passes allocate at once, activations and gradients included. operators: how often each
    is called.
    """

    activations: int
    peak: int
    operators: Mapping[Operator, int]


def on_meta(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy of `module` without memory: parameters and buffers on the meta device, floating ones as `dtype`."""

    def empty(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device="meta", dtype=dtype if tensor.is_floating_point() else tensor.dtype)

    memo: dict[int, Tensor] = {
        id(parameter): torch.nn.Parameter(empty(parameter), parameter.requires_grad)
        for parameter in module.parameters()
    }
    memo |= {id(buffer): empty(buffer) for buffer in module.buffers()}
    return copy.deepcopy(module, memo)


def trace(module: torch.nn.Module, batch: dict[str, Any], gradients_leave: bool, device: str) -> Trace:
    """Trace of one micro-batch through `module`, which is on the meta device with `requires_grad` set.

    module: `module(batch)` gives one sum of losses or several. batch: dict of tensors, on any device; only
    their shapes and types count. gradients_leave: each gradient is freed as soon as it is whole, because it is
    added to another or moved to a buffer; else it stays beside its parameter. device: "cpu" or "cuda", whose way
    the operators go.
    """
    batch = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in batch.items()}
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    saved: list[Tensor] = []
    with ops.meta_stands_for(device), _Pass() as reader, saving_to(saved):
        loss = module(batch).mean()
    activations = storage_bytes(saved, without=module.parameters())
    saved.clear()
    hooks = [parameter.register_post_accumulate_grad_hook(_forget_gradient) for parameter in trained if gradients_leave]
    with ops.meta_stands_for(device), reader:
        loss.backward()
    for hook in hooks:
        hook.remove()
    for parameter in trained:
        parameter.grad = None
    return Trace(activations, reader.peak, reader.operators)


def _forget_gradient(parameter: Tensor) -> None:
    parameter.grad = None


# --- Memory ---


class Allocations(TorchDispatchMode):
    """Counts allocations: within its context a new tensor counts until it is freed; one from before does not count.

    live, peak: bytes now, and the most at once. A kernel's own scratch memory is not seen. Works on meta tensors too,
    which have sizes but no memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.finalize] = {}  # address of a storage -> what forgets it when it is freed

    def __torch_dispatch__(self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        for tensor in tensors_in((arguments, options)):
            self._notice(tensor, 0)
        result = op(*arguments, **(options or {}))
        for tensor in tensors_in(result):
            self._notice(tensor, tensor.untyped_storage().nbytes())
        return result

    def _notice(self, tensor: Tensor, size: int) -> None:
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


class _Pass(Allocations):
    """Counts allocations, and how often each operator is called."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[Operator] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        result = super().__torch_dispatch__(op, types, arguments, options)
        if op is torch.ops.dsmm.linear_cross_entropy.default:
            with Recorder() as recorder:
                forward_by_chunks(*arguments)
            self.operators.update(recorder.operators)
        else:
            self.operators[operator_of(op, arguments, result)] += 1
        return result


def storage_bytes(tensors: Iterable[Tensor], without: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages of `tensors`, each counted once; those of the tensors `without` are left out."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    for tensor in without:
        sizes.pop(tensor.untyped_storage()._cdata, None)
    return sum(sizes.values())


def saving_to(saved: list[Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    """Context in which what autograd keeps for the backward pass is added to the list `saved`, too."""

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)


# --- Operators ---

PRODUCT, COPY, VIEW = "product", "copy", "view"
ALL_REDUCE, ALL_GATHER = "all-reduce in a replica", "all-gather in a replica"  # of tensor parallelism
# Products -> where the second factor stands, from 1.
PRODUCTS = {"linear": 2, "mm": 2, "bmm": 2, "matmul": 2, "addmm": 3, "addmm_": 3, "baddbmm": 3}
# Of the first argument these read, or write, as much as the result or the source is large.
READ_IN_PART = {"embedding", "gather", "index", "index_select"}
WRITTEN_IN_PART = {"index_add_", "index_copy_", "scatter_add_", "index_put_", "embedding_dense_backward"}
WITHOUT_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "_unsafe_view"}
WITHOUT_WORK |= {"alias", "numpy_T", "promote_types"}


class Operator(NamedTuple):
    """One call of an operator.

    kind: PRODUCT, VIEW, ALL_REDUCE, ALL_GATHER, the name of one of ours, or COPY for all else, which mostly reads and
    writes. flops: of products and of attention. bytes: read and written; of an exchange, sent by each rank. size: what
    a device's rate for the kind depends on (Measured.rates).
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


def operator_of(op: Any, arguments: tuple, result: Any) -> Operator:
    """The Operator that a call was, from its arguments and its result."""
    name, given, made = op._overloadpacket.__name__, tensors_in(arguments), tensors_in(result)
    floating = [tensor for tensor in (*given, *made) if tensor.is_floating_point()]
    precision = NAMES.get(floating[0].dtype, "fp32") if floating else "fp32"
    if name in PRODUCTS:
        left, right = arguments[PRODUCTS[name] - 2], arguments[PRODUCTS[name] - 1]
        right = right.mT if name == "linear" else right
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        moved = sum(map(_bytes, (left, right, made[0])))
        return Operator(PRODUCT, precision, 2.0 * left.numel() * columns, moved, min(rows, inner, columns))
    if name in WITHOUT_WORK or op.is_view:
        return Operator(VIEW, precision, 0, 0, 1)
    if op.namespace == EXCHANGES:
        (whole,), ranks = map(_bytes, given), arguments[1]
        if name == "all_reduce":
            return Operator(ALL_REDUCE, precision, 0, 2 * whole * (ranks - 1) / ranks, whole)
        return Operator(ALL_GATHER, precision, 0, whole * (ranks - 1), whole)
    moved = sum(map(_bytes, given)) + sum(map(_bytes, made))  # what is changed in place is given, and made
    if op.namespace == "dsmm":
        if "attention" in name:
            return _attention(op, name, precision, arguments, moved)
        return Operator(name, precision, 0, moved, moved)
    if name in READ_IN_PART:
        moved = 2 * sum(map(_bytes, made))
    elif name == "embedding_dense_backward":
        moved = 3 * _bytes(given[0]) + sum(map(_bytes, made))
    elif name in WRITTEN_IN_PART:
        moved = 3 * min(map(_bytes, floating or given))
    return Operator(COPY, precision, 0, moved, max(moved, 1))


def _attention(op: Any, name: str, precision: str, arguments: tuple, moved: int) -> Operator:
    given = {argument.name: value for argument, value in zip(op._schema.arguments, arguments, strict=True)}
    keys, queries = given["projected" if "projected" in given else "keys_values"], given["queries"]
    batch, length, width = keys.shape
    rows, hidden = (length, width // 3) if queries is None else queries.shape[1:]
    pairs = batch * rows * keys_seen((given.get("before"), given.get("after")), length)
    return Operator(name, precision, (4 if name.endswith("backward") else 2) * 2.0 * pairs * hidden, moved, length)


def tensors_in(nested: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts. (torch's pytree does it in five times the time.)"""
    if isinstance(nested, Tensor):
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
