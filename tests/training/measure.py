"""What an optimizer step really holds and sends, beside what the plan said of it. For CPU ranks."""

import copy
import gc

import torch
from torch.distributed import ProcessGroup

from ds_minimodel.costs.devices import device_named
from ds_minimodel.costs.memory import ring
from ds_minimodel.costs.plans import Planner
from ds_minimodel.costs.tracing import Allocations, saving_to, storage_bytes, tensors_in
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.training.loop import optimizer_step
from ds_minimodel.training.partition import partition_of_run
from ds_minimodel.training.zero.engine import build_engine, destroy
from ds_minimodel.training.zero.state import adamw_of, vectors

COLLECTIVES = {
    "allreduce_": "all-reduce",
    "allgather_": "all-gather",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
}
# Flags and norms are reduced too: some bytes, whatever trains.
SMALL = 64


class Ledger(Allocations):
    """Counts what code sends, too. sent: (collective, bytes of the whole tensor, ranks) in order, as c10d's operators
    are called."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        result = super().__torch_dispatch__(op, types, arguments, options)
        if op.namespace == "c10d":
            sizes = [sum(map(bytes_of, tensors_in(argument))) for argument in arguments]
            group = next(
                ProcessGroup.unbox(argument) for argument in arguments if isinstance(argument, torch.ScriptObject)
            )
            self.sent.append((op._overloadpacket.__name__, max(sizes, default=0), group.size()))
        return result


def bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def measure_step(module, batches, run, world):
    """Train three steps; of the third {"measured": …, "planned": …}, bytes on this rank by kind.

    Arguments as of loop.train. `weights` and `optimizer` are
    the storages that hold them between steps, `activations` what autograd keeps of one micro-batch, parameters left
    out, `total` all tensors at the fullest moment, `rest` what of it is none of these: gradients and buffers.
    `sent` counts the collectives by the ring algorithm; the plan does not know those within a replica.
    """
    partition = partition_of_run(module, run, world)
    plan = Planner(module, lambda _: batches(0)[0], run.execution.precision, device_named("cpu")).plan(partition.setup)
    activations = saved_bytes(copy.deepcopy(module).to(DTYPES[run.execution.precision]), batches(0)[0])
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    # Held, so that what an earlier engine has left behind is not freed in the meantime.
    standing = [tensor for tensor in _all_tensors() if tensor.untyped_storage()._cdata not in own]
    engine = build_engine(module, run, world, partition.zero, partition.whole)
    for step in range(3):
        micro_batches = batches(step)
        (count,) = world.sum(sum(batch["count"] for batch in micro_batches))
        with Ledger() as ledger:
            optimizer_step(engine, micro_batches, max(1, count), run, world, step)
    measured = {
        "weights": _weights(engine.module),
        "optimizer": _optimizer(engine),
        "activations": activations,
        "total": storage_bytes(_all_tensors()) - storage_bytes(standing) + ledger.peak,
    }
    destroy(engine)
    sent = {}
    for operator, size, ranks in ledger.sent:
        if size > SMALL:
            name = COLLECTIVES[operator]
            sent[name] = sent.get(name, 0) + ring(size, ranks, name)
    memory = plan.memory
    planned = {
        "weights": memory.weights,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "total": memory.total,
    }
    return {"measured": _with_rest(measured) | {"sent": sent}, "planned": _with_rest(planned) | {"sent": plan.traffic}}


def saved_bytes(module, batch):
    """Bytes that autograd keeps of a forward pass, parameters left out."""
    saved = []
    with saving_to(saved):
        module(batch)
    return storage_bytes(saved, without=module.parameters())


def _with_rest(sizes):
    return sizes | {"rest": 2 * sizes["total"] - sum(sizes.values())}


def _weights(module):
    """Parameters, buffers, and stage 3's partitions."""
    tensors = [*module.parameters(), *module.buffers()]
    return storage_bytes(tensors + [tensor.ds_tensor for tensor in tensors if hasattr(tensor, "ds_tensor")])


def _optimizer(engine):
    """Adam's state, and the fp32 copies that are not the module's own parameters."""
    state = tensors_in(list(adamw_of(engine).state.values()))
    return storage_bytes([*vectors(engine), *state], without=engine.module.parameters())


def _all_tensors():
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu"]
