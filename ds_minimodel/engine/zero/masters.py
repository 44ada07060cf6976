"""The fp32 copies that DeepSpeed's optimizers keep of low-precision parameters, by name."""

import torch
from deepspeed.utils import safe_get_full_fp32_param

from ds_minimodel.engine.zero.fragments import fragments, masters_of_stage_0, trainable
from ds_minimodel.parallel import full_tensor


def read_masters(engine):
    """{name: fp32 tensor on the CPU} of the parameters that train, whole; collective at every ZeRO stage."""
    own = masters_of_stage_0(engine)
    masters = {}
    for name, parameter in trainable(engine):  # one after another: a device may not hold all of them whole
        master = (own[parameter] if parameter in own else _full(parameter)).detach().to(engine.device)
        masters[name] = full_tensor(parameter, master).to("cpu", torch.float32, copy=True)
    return masters


def write_masters(engine, weights):
    """Set the fp32 copies from {name: fp32 tensor}, what this rank's parameters hold.

    DeepSpeed makes them out of the parameters that it has already rounded to bf16 or fp16; so what is read
    from an fp32 artifact would lose its last bits before the first step.
    """
    for fragment in fragments(engine):
        fragment.tensors["master"].copy_(weights[fragment.name].flatten()[fragment.span])


def _full(parameter):
    master = safe_get_full_fp32_param(parameter)
    return parameter if master is None else master
