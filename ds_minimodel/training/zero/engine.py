"""DeepSpeed's engine around a module, with the faults of its version worked around."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

from ds_minimodel.common.memory import return_blocks
from ds_minimodel.ops.parallel import fill
from ds_minimodel.ops.precision import DTYPES
from ds_minimodel.training.run import Run
from ds_minimodel.training.zero import start
from ds_minimodel.training.zero.config import deepspeed_config, deepspeeds_refusals
from ds_minimodel.training.zero.state import write_masters

if TYPE_CHECKING:
    from ds_minimodel.training.world import World

LINEAR = torch.nn.functional.linear


def build_engine(
    module: torch.nn.Module,
    run: Run,
    world: World,
    zero: dict | None = None,
    replicated: Collection[str] = (),
) -> deepspeed.DeepSpeedEngine:
    """Build the engine that trains the parameters that require gradients, with torch's AdamW.

    Args:
        module: what trains.
        run: all numbers of the run.
        world: the ranks that train together.
        zero: settings of a partition; by default DeepSpeed's sizes of buffers.
        replicated: names of frozen parameters that stay whole on each rank at stage 3; they become
            buffers of `module`.
    """
    precision = run.execution.precision
    stage = run.execution.zero_stage
    _make_buffers(module, replicated, world.device, DTYPES[precision])
    original = {
        name: parameter.detach().clone()
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    # Frozen parameters are not handed over: a group without one that trains is an IndexError at
    # stages 1 and 2. The optimizer is made here: DeepSpeed would compile one of its own.
    optimizer = adamw_for(
        (parameter for parameter in module.parameters() if parameter.requires_grad), run, world
    )
    mpu = model_parallel_unit(world) if world.tensor.size > 1 else None
    config = deepspeed_config(run, world.data.size, zero)

    def initialize() -> deepspeed.DeepSpeedEngine:
        with deepspeeds_refusals(run), _filled_in_turn(module):
            engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, dist_init_required=False, config=config, mpu=mpu
            )
            return engine

    engine = world.replicated(initialize)
    if stage == 0 and world.data.size == 1:
        # The reduction would copy all gradients out and back. It also makes those that are missing,
        # so all that trains must get one.
        engine.enable_backward_allreduce = False
    if stage == 0 and precision != "fp32":
        # DeepSpeed takes an optimizer step with zero gradients at start-up here (DeepSpeed#5151):
        # undo it.
        engine.optimizer.optimizer.state.clear()
    if hasattr(engine.optimizer, "has_overflow_partitioned_grads_serial"):
        _speed_up(engine.optimizer, stage, world)
    if precision != "fp32":
        write_masters(engine, original)
    start.set_log_level(run.deepspeed)
    engine.train()
    return engine


def _speed_up(optimizer: Any, stage: int, world: World) -> None:
    """Make stages 1 and 2 do what they do for each tensor for all of them at once."""
    # DeepSpeed takes eleven operators for each tensor, most of what a step of LoRA launches on a
    # GPU.
    optimizer.has_overflow_partitioned_grads_serial = lambda: _any_not_finite(
        gradient for group in optimizer.averaged_gradients.values() for gradient in group
    )
    # It takes two or three more for each in steps that are clipped. Where a replica has parts,
    # DeepSpeed has to see which tensor is one.
    if world.tensor.size == 1:
        norm = optimizer.get_grad_norm_direct

        def norm_of_norms(gradients: list[torch.Tensor], parameters: Any) -> Any:
            if not gradients:
                return norm([], parameters)
            norms = torch._foreach_norm(gradients, dtype=torch.float64)
            return norm([torch.stack(norms)], parameters)

        optimizer.get_grad_norm_direct = norm_of_norms
    if stage == 1 and world.data.size == 1:
        # The reduction would copy each gradient into a bucket, divide it by 1 and copy it out.
        optimizer.contiguous_gradients = False
        optimizer.reduce_independent_p_g_buckets_and_remove_grads = lambda parameter, group: None


def adamw_for(
    parameters: Iterable[torch.nn.Parameter], run: Run, world: World
) -> torch.optim.AdamW:
    """Return the optimizer of a run, for DeepSpeed to wrap."""
    skips = run.execution.zero_stage == 0 and run.execution.precision == "fp32"
    optimizer_class = SkippingAdamW if skips else torch.optim.AdamW
    optimizer = optimizer_class(
        parameters,
        lr=run.schedule.lr,
        betas=run.optimizer.betas,
        eps=run.optimizer.eps,
        weight_decay=run.optimizer.weight_decay,
        fused=True,
    )
    if isinstance(optimizer, SkippingAdamW):
        optimizer.world = world
    return optimizer


class SkippingAdamW(torch.optim.AdamW):
    """AdamW that skips a step whose gradients are not finite on some rank.

    DeepSpeed does so, but not in fp32 at stage 0.
    """

    world: World
    # Whether the last step was skipped; the engine reads it.
    overflow = False

    def step(self, closure: Any = None) -> Any:
        """Take a step, or none."""
        parameters = (parameter for group in self.param_groups for parameter in group["params"])
        is_spoiled = _any_not_finite(parameter.grad for parameter in parameters)
        (num_spoiled,) = self.world.sum(int(is_spoiled))
        self.overflow = num_spoiled > 0
        return None if self.overflow else super().step(closure)


def _any_not_finite(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Return whether any gradient is not finite, (1,) bool."""
    known = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
    if not known:
        return torch.tensor([False])
    return ~torch.stack(torch._foreach_norm(known, math.inf)).isfinite().all()[None]


def destroy(engine: deepspeed.DeepSpeedEngine) -> None:
    """End an engine, print what its comms_logger has counted, and undo what DeepSpeed leaves.

    At stage 3 it replaces torch's linear function by its own, which would keep what other engines
    need not keep; the logger would count for engines whose recipe does not ask for it.
    """
    if deepspeed.comm.comm.comms_logger.enabled:
        deepspeed.comm.log_summary()
        deepspeed.comm.reset_log()
        deepspeed.comm.configure(enabled=False)
    start.set_log_level({})
    engine.destroy()
    torch.nn.functional.linear = LINEAR


def set_learning_rate(engine: deepspeed.DeepSpeedEngine, lr: float) -> None:
    """Set the rate of the coming step, for all parameters."""
    for group in engine.optimizer.param_groups:
        group["lr"] = lr


def backward_and_step(engine: deepspeed.DeepSpeedEngine, loss: torch.Tensor, run: Run) -> None:
    """Compute gradients of one micro-batch; after the last one of a step, update.

    Args:
        engine: DeepSpeed's.
        loss: this micro-batch's share of the step's loss, which DeepSpeed would divide by the
            number of micro-batches.
        run: all numbers of the run.
    """
    if run.execution.precision == "fp16" and run.execution.zero_stage == 0:
        # DeepSpeed 0.19.8 divides gradients by the loss scale, but does not multiply the loss by it
        # (DeepSpeed#8393).
        loss = loss * engine.optimizer.loss_scale
    engine.backward(loss, scale_wrt_gas=False)
    engine.step()


def gradient_norm(engine: deepspeed.DeepSpeedEngine, run: Run, world: World) -> float | None:
    """Return the L2 norm of the last step's gradients before clipping.

    None where DeepSpeed has not taken it, or takes it wrongly (stage 0 with parts of a replica).
    """
    norm = engine.get_global_grad_norm()
    is_wrong = run.execution.zero_stage == 0 and world.tensor.size > 1
    if norm is None or is_wrong or not math.isfinite(norm):
        return None
    return float(norm)


def _make_buffers(
    module: torch.nn.Module, names: Collection[str], device: torch.device, dtype: torch.dtype
) -> None:
    """Make buffers of the named parameters, which stage 3 would partition and gather at every step.

    DeepSpeed neither moves nor casts buffers there, so that is done here.
    """
    chosen = {id(parameter) for name, parameter in module.named_parameters() if name in names}
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None and id(parameter) in chosen:
                fill(parameter)
                del owner._parameters[name]
                owner.register_buffer(name, parameter.detach().to(device, dtype), persistent=False)


@contextlib.contextmanager
def _filled_in_turn(module: torch.nn.Module) -> Iterator[None]:
    """Let stage 3 read a frozen parameter when it is about to cut it.

    So a rank holds the whole of one at a time.
    """
    waiting = [parameter for parameter in module.parameters() if hasattr(parameter, "source")]
    for parameter in waiting:
        # DeepSpeed sends a parameter of another status to all ranks first.
        vars(parameter)["ds_status"] = ZeroParamStatus.NOT_AVAILABLE
    if waiting:
        # Large weights come and go, and glibc's heap would keep the holes.
        return_blocks()
    cut = deepspeed.zero.Init._zero_init_param

    def fill_and_cut(init: Any, parameter: torch.nn.Parameter) -> None:
        fill(parameter)
        cut(init, parameter)

    deepspeed.zero.Init._zero_init_param = fill_and_cut
    try:
        yield
    finally:
        deepspeed.zero.Init._zero_init_param = cut


def model_parallel_unit(world: World) -> SimpleNamespace:
    """Return DeepSpeed's `mpu`, which says what lies on which ranks.

    Optimizer state is divided and gradients are summed over `data`, norms over `tensor` too. A
    parameter with the attribute `tensor_model_parallel` counts in the norm on every rank, all
    others on one.
    """
    data = world.data
    tensor = world.tensor
    return SimpleNamespace(
        get_data_parallel_rank=lambda: data.rank,
        get_data_parallel_world_size=lambda: data.size,
        get_data_parallel_group=lambda: data.handle,
        get_data_parallel_group_ranks=lambda: dist.get_process_group_ranks(data.handle),
        get_model_parallel_rank=lambda: tensor.rank,
        get_model_parallel_world_size=lambda: tensor.size,
        get_model_parallel_group=lambda: tensor.handle,
    )
