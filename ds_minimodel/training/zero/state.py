"""The training state of each parameter in DeepSpeed's engines: fp32 master and both Adam moments.

Stage 0 keeps whole tensors, stages 1 and 2 slices of one long vector cut among the ranks, stage 3 a
slice of each parameter. A Fragment hides that: it is what one rank holds of one flattened
parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.utils import safe_get_full_fp32_param

from ds_minimodel.ops.parallel import full_tensor

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

# The parts of a parameter's training state, fp32 each.
MASTER = "master"
MOMENTS = ("exp_avg", "exp_avg_sq")
STATE_PARTS = (MASTER, *MOMENTS)
# State of fp16's loss scaler between steps: the scale, its age, the last step that overflowed.
LOSS_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter")


@dataclass(frozen=True)
class Fragment:
    """One rank's part of one flattened parameter.

    Attributes:
        name: of the parameter.
        start: index of its first element in the flattened parameter.
        tensors: by STATE_PARTS, (elements,) fp32, views of the state; before the first step the
            master alone.
    """

    name: str
    start: int
    tensors: dict[str, torch.Tensor]

    @property
    def span(self) -> slice:
        """Its elements in the flattened parameter."""
        return slice(self.start, self.start + self.tensors[MASTER].numel())


def trainable(engine: DeepSpeedEngine) -> list[tuple[str, Any]]:
    """Return (name, parameter) of what trains, in order, with DeepSpeed's attributes."""
    return [
        (name, parameter)
        for name, parameter in engine.module.named_parameters()
        if parameter.requires_grad
    ]


def fragments(engine: DeepSpeedEngine) -> Iterator[Fragment]:
    """Yield this rank's Fragments, in the order of the parameters."""
    states = adamw_of(engine).state
    stage0_masters = _masters_of_stage_0(engine)
    for name, parameter in trainable(engine):
        vector, offset, start, numel = _place(engine.optimizer, parameter, stage0_masters)
        if vector is not None and numel > 0:
            of_vector = {MASTER: vector.data, **states.get(vector, {})}
            tensors = {
                part: of_vector[part].view(-1)[offset : offset + numel]
                for part in STATE_PARTS
                if part in of_vector
            }
            yield Fragment(name, start, tensors)


def adamw_of(engine: DeepSpeedEngine) -> torch.optim.AdamW:
    """Return torch's optimizer within DeepSpeed's."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def vectors(engine: DeepSpeedEngine) -> list[torch.Tensor]:
    """Return the fp32 tensors that AdamW updates on this rank."""
    if is_stage_3(engine):
        # It shows them to AdamW in a step only.
        return list(engine.optimizer.fp32_partitioned_groups_flat)
    return [vector for group in adamw_of(engine).param_groups for vector in group["params"]]


def is_stage_3(engine: DeepSpeedEngine) -> bool:
    """Return whether the engine partitions parameters."""
    return hasattr(engine.optimizer, "fp32_partitioned_groups_flat")


def read_masters(engine: DeepSpeedEngine) -> dict[str, torch.Tensor]:
    """Return {name: fp32 tensor on the CPU} of the parameters that train, whole.

    It is collective at every ZeRO stage.
    """
    stage0_masters = _masters_of_stage_0(engine)
    masters = {}
    # One after another: a device may not hold all of them whole.
    for name, parameter in trainable(engine):
        master = stage0_masters.get(parameter)
        if master is None:
            master = _full_master(parameter)
        master = full_tensor(parameter, master.detach().to(engine.device))
        masters[name] = master.to("cpu", torch.float32, copy=True)
    return masters


def write_masters(engine: DeepSpeedEngine, weights: Mapping[str, torch.Tensor]) -> None:
    """Set the fp32 masters from {name: fp32 tensor of the shape of this rank's parameter}.

    DeepSpeed makes them out of the parameters that it has already rounded to bf16 or fp16; so what
    is read from an fp32 artifact would lose its last bits before the first step.
    """
    for fragment in fragments(engine):
        fragment.tensors[MASTER].copy_(weights[fragment.name].flatten()[fragment.span])


def write_state(
    engine: DeepSpeedEngine, whole: Callable[[str, str], torch.Tensor], steps_taken: float
) -> None:
    """Set masters, Adam moments and step count, and the parameters from the masters.

    Args:
        engine: DeepSpeed's.
        whole: (name, one of STATE_PARTS) → the flattened parameter's state, (elements,); called for
            one after another.
        steps_taken: optimizer steps that the state has seen.
    """
    for vector in vectors(engine):
        adamw_of(engine).state[vector] = {
            "step": torch.tensor(float(steps_taken), device=vector.device),
            **{moment: torch.zeros_like(vector) for moment in MOMENTS},
        }
    here = {fragment.name: fragment for fragment in fragments(engine)}
    if is_stage_3(engine):
        # It partitions the small parameters that stay gathered.
        engine.optimizer.checkpoint_event_prologue()
    with torch.no_grad():
        for name, parameter in trainable(engine):
            fragment = here.get(name)
            if fragment is not None:
                for part in STATE_PARTS:
                    fragment.tensors[part].copy_(whole(name, part)[fragment.span])
            if not is_stage_3(engine):
                parameter.view(-1).copy_(whole(name, MASTER))
            elif fragment is not None:
                master = fragment.tensors[MASTER]
                parameter.ds_tensor.data[: master.numel()].copy_(master)
    if is_stage_3(engine):
        engine.optimizer.checkpoint_event_epilogue()


def read_loss_scale(engine: DeepSpeedEngine) -> dict[str, float] | None:
    """Return fp16's LOSS_SCALE as it stands; None in other precisions."""
    scaler = _loss_scaler_of(engine)
    return None if scaler is None else {key: getattr(scaler, key) for key in LOSS_SCALE}


def write_loss_scale(engine: DeepSpeedEngine, values: Mapping[str, float] | None) -> None:
    """Set what `read_loss_scale` gave; nothing to do in other precisions than fp16."""
    scaler = _loss_scaler_of(engine)
    if scaler is not None and values is not None:
        vars(scaler).update(values)


def _loss_scaler_of(engine: DeepSpeedEngine) -> Any:
    """Return what holds fp16's loss scale and its last steps; None in other precisions."""
    if not engine.fp16_enabled():
        return None
    return getattr(engine.optimizer, "loss_scale_config", None) or engine.optimizer.loss_scaler


def _masters_of_stage_0(engine: DeepSpeedEngine) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Return {parameter: fp32 copy} of stage 0 in low precision.

    deepspeed.utils does not see these.
    """
    optimizer = engine.optimizer
    if not hasattr(optimizer, "fp16_groups") or not hasattr(optimizer, "fp32_groups"):
        return {}
    return {
        parameter: master
        for parameters, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
        for parameter, master in zip(parameters, masters, strict=True)
    }


def _full_master(parameter: torch.nn.Parameter) -> torch.Tensor:
    master = safe_get_full_fp32_param(parameter)
    return parameter if master is None else master


def _place(
    optimizer: Any, parameter: Any, stage0_masters: Mapping
) -> tuple[torch.Tensor | None, int, int, int]:
    """Return (vector, offset in it, start in the parameter, elements) of this rank's fragment."""
    if hasattr(parameter, "ds_id"):
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = size * optimizer._get_param_partition_rank(parameter)
        # The last partition is padded.
        numel = min(size, parameter.ds_numel - start)
        return optimizer.fp32_partitioned_groups_flat[group], offset, start, numel
    if hasattr(parameter, "_hp_mapping"):
        mapping = parameter._hp_mapping
        if mapping is None:
            # The parameter lies on other ranks.
            return None, 0, 0, 0
        vector = optimizer.optimizer.param_groups[mapping.param_group_index]["params"][0]
        address = mapping.hp_fragment_address
        return vector, address.start, mapping.lp_fragment_address.start, address.numel
    return stage0_masters.get(parameter, parameter), 0, 0, parameter.numel()
