"""DeepSpeed's engine around a module, with what its version leaves wrong put right."""

import deepspeed
import torch

from ds_minimodel.engine.run import deepspeed_config
from ds_minimodel.engine.zero.masters import write_masters
from ds_minimodel.engine.zero.model_parallel import model_parallel_unit
from ds_minimodel.ops.precision import DTYPES

LINEAR = torch.nn.functional.linear


def build_engine(module, run, world, plan=None):
    """DeepSpeed's engine that trains the parameters of `module` that require gradients, with torch's AdamW.

    plan: of plan.plan_run; DeepSpeed's own sizes of buffers where it is not given. Frozen parameters that it keeps
    whole at stage 3 become buffers of `module`.
    """
    if plan is not None:
        _hide(module, plan.choice.replicated, world.device, DTYPES[run.precision])
    original = {
        name: parameter.detach().clone() for name, parameter in module.named_parameters() if parameter.requires_grad
    }
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=run.lr, betas=(run.beta1, run.beta2), eps=run.eps, weight_decay=run.weight_decay, fused=True
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        dist_init_required=False,
        config=deepspeed_config(run, world.data.size, plan and plan.zero),
        mpu=world.alike(lambda: model_parallel_unit(run, world)),
    )
    if run.zero_stage == 0 and world.data.size == 1:
        # It would copy all gradients out and back. It also makes those that are missing: all that trains must get one.
        engine.enable_backward_allreduce = False
    if run.zero_stage == 0 and run.precision != "fp32":
        # DeepSpeed takes an optimizer step with zero gradients at start-up here (DeepSpeed#5151): undo it.
        engine.optimizer.optimizer.state.clear()
    if run.precision != "fp32":
        write_masters(engine, original)
    engine.train()
    return engine


def destroy(engine):
    """End an engine. DeepSpeed puts a linear function of its own in torch's place at stage 3 and leaves it there; it
    would keep what other engines need not keep."""
    engine.destroy()
    torch.nn.functional.linear = LINEAR


def _hide(module, names, device, dtype):
    """Make buffers of the parameters `names`, which stage 3 would partition and gather again at every step.

    DeepSpeed neither moves nor casts buffers there.
    """
    hidden = {id(parameter) for name, parameter in module.named_parameters() if name in names}
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if id(parameter) in hidden:
                del owner._parameters[name]
                owner.register_buffer(name, parameter.detach().to(device, dtype), persistent=False)


def missing_loss_scale(engine, run):
    """What the loss must be multiplied by: in fp16 at stage 0 DeepSpeed 0.19.8 divides gradients by the loss
    scale, but does not multiply the loss by it (DeepSpeed#8393)."""
    return engine.optimizer.loss_scale if run.precision == "fp16" and run.zero_stage == 0 else 1.0
