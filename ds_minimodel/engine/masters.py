"""The fp32 copies that DeepSpeed's optimizers keep of low-precision parameters."""

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param


def read_masters(engine):
    """{name: fp32 tensor on the CPU} of the parameters that train; collective at every ZeRO stage."""
    own = _stage0_masters(engine)
    return {name: (own[parameter] if parameter in own else _full(parameter)).detach().to(
                "cpu", torch.float32, copy=True) for name, parameter in trainable(engine)}


def write_masters(engine, weights):
    """Set the fp32 copies from {name: fp32 tensor}.

    DeepSpeed makes them out of the parameters that it has already rounded to bf16 or fp16; so what is read
    from an fp32 artifact would lose its last bits before the first step.
    """
    own = _stage0_masters(engine)
    for name, parameter in trainable(engine):
        if parameter in own:
            own[parameter].data.copy_(weights[name])
        elif hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            safe_set_full_fp32_param(parameter, weights[name].to(engine.device))


def trainable(engine):
    return [(name, parameter) for name, parameter in engine.module.named_parameters() if parameter.requires_grad]


def _stage0_masters(engine):
    """{parameter: fp32 copy} of stage 0 in low precision, which the functions of deepspeed.utils do not see."""
    optimizer = engine.optimizer
    if not hasattr(optimizer, "fp16_groups") or not hasattr(optimizer, "fp32_groups"):
        return {}
    return {parameter: master for parameters, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups)
            for parameter, master in zip(parameters, masters)}


def _full(parameter):
    master = safe_get_full_fp32_param(parameter)
    return parameter if master is None else master
