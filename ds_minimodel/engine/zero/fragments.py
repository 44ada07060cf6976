"""Where DeepSpeed's engines keep the training state of each parameter: fp32 master and both Adam moments.

Stage 0 keeps whole tensors, stages 1 and 2 slices of one long vector cut among the ranks, stage 3 a slice of
each parameter. A Fragment hides that: it is what one rank holds of one flattened parameter.
"""

from dataclasses import dataclass

KEYS = ("master", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Fragment:
    name: str
    start: int  # of its first element in the flattened parameter
    tensors: dict  # by KEYS: (elements,) fp32, views of the state; before the first step "master" alone

    @property
    def span(self):
        return slice(self.start, self.start + self.tensors["master"].numel())


def trainable(engine):
    return [(name, parameter) for name, parameter in engine.module.named_parameters() if parameter.requires_grad]


def fragments(engine):
    """This rank's Fragments, in the order of the parameters."""
    states, stage0_masters = adamw_of(engine).state, masters_of_stage_0(engine)
    for name, parameter in trainable(engine):
        vector, offset, start, numel = _place(engine.optimizer, parameter, stage0_masters)
        if numel > 0:
            tensors = {"master": vector.data, **states.get(vector, {})}
            yield Fragment(
                name, start, {key: tensors[key].view(-1)[offset : offset + numel] for key in KEYS if key in tensors}
            )


def adamw_of(engine):
    """torch's optimizer within DeepSpeed's."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def vectors(engine):
    """The fp32 tensors that AdamW updates on this rank."""
    if hasattr(engine.optimizer, "fp32_partitioned_groups_flat"):  # stage 3 shows them to AdamW in a step only
        return list(engine.optimizer.fp32_partitioned_groups_flat)
    return [vector for group in adamw_of(engine).param_groups for vector in group["params"]]


def masters_of_stage_0(engine):
    """{parameter: fp32 copy} of stage 0 in low precision, which deepspeed.utils does not see."""
    optimizer = engine.optimizer
    if not hasattr(optimizer, "fp16_groups") or not hasattr(optimizer, "fp32_groups"):
        return {}
    return {
        parameter: master
        for parameters, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups)
        for parameter, master in zip(parameters, masters)
    }


def loss_scaler_of(engine):
    """The object that holds fp16's loss scale, its steps and its last overflow; None in other precisions."""
    if not engine.fp16_enabled():
        return None
    return getattr(engine.optimizer, "loss_scale_config", None) or engine.optimizer.loss_scaler


def _place(optimizer, parameter, stage0_masters):
    """(vector, offset in it, start in the parameter, elements) of this rank's fragment."""
    if hasattr(parameter, "ds_id"):
        group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = size * optimizer._get_param_partition_rank(parameter)
        return (
            optimizer.fp32_partitioned_groups_flat[group],
            offset,
            start,
            min(size, parameter.ds_numel - start),
        )  # the last partition is padded
    if hasattr(parameter, "_hp_mapping"):
        mapping = parameter._hp_mapping
        if mapping is None:  # it lies on other ranks
            return None, 0, 0, 0
        vector = optimizer.optimizer.param_groups[mapping.param_group_index]["params"][0]
        address = mapping.hp_fragment_address
        return vector, address.start, mapping.lp_fragment_address.start, address.numel
    return stage0_masters.get(parameter, parameter), 0, 0, parameter.numel()
