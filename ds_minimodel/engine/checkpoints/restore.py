"""Training state out of the files of any ZeRO stage and number of ranks, into an engine of any other.

DeepSpeed's universal checkpoints do not know stage 0, nor the way between stage 3 and the others. The files
are read as DeepSpeed's own converter reads them (deepspeed/checkpoint/ds_to_universal.py).
"""

from collections import defaultdict

import torch
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from ds_minimodel.engine.zero.fragments import KEYS, Fragment, adamw_of, fragments, trainable, vectors

# The only classes that DeepSpeed's checkpoints name besides torch's own. Nothing else is unpickled.
KNOWN_CLASSES = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


def load_file(path, mmap=False):
    """A file of a checkpoint, on the CPU; of all classes, only KNOWN_CLASSES are made."""
    with torch.serialization.safe_globals(KNOWN_CLASSES):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def restore(engine, folder, manifest, tensor_rank):
    """Set masters, Adam moments and step count of `engine` from the checkpoint in `folder`, and the parameters
    from the masters.

    Every rank reads all files of its part of the model (`tensor_rank`), but holds one whole parameter at a time.
    """
    saved, steps_taken = saved_fragments(folder, manifest, tensor_rank)
    for vector in vectors(engine):
        step = torch.tensor(float(steps_taken), device=vector.device)
        adamw_of(engine).state[vector] = {
            "step": step,
            "exp_avg": torch.zeros_like(vector),
            "exp_avg_sq": torch.zeros_like(vector),
        }
    here = {fragment.name: fragment for fragment in fragments(engine)}
    is_stage_3 = hasattr(engine.optimizer, "fp32_partitioned_groups_flat")
    if is_stage_3:
        engine.optimizer.checkpoint_event_prologue()  # partitions what small parameters are gathered
    with torch.no_grad():
        for name, parameter in trainable(engine):
            fragment = here.get(name)
            if fragment is not None:
                for key in KEYS:
                    fragment.tensors[key].copy_(_whole(saved[name], key)[fragment.span])
            if not is_stage_3:
                parameter.view(-1).copy_(_whole(saved[name], "master"))
            elif fragment is not None:
                master = fragment.tensors["master"]
                parameter.ds_tensor.data[: master.numel()].copy_(master)
    if is_stage_3:
        engine.optimizer.checkpoint_event_epilogue()


def saved_fragments(folder, manifest, tensor_rank):
    """({name: Fragments in order of their start}, optimizer steps taken) of one tensor rank's part.

    The tensors are mapped from the files, not read.
    """
    models = sorted(folder.glob(f"*mp_rank_{tensor_rank:02}_model_states.pt"), key=_rank)
    shards = [
        load_file(path, mmap=True)["optimizer_state_dict"]
        for path in sorted(folder.glob(f"*mp_rank_{tensor_rank:02}_optim_states.pt"), key=_rank)
    ]
    model = load_file(models[0], mmap=True)
    if manifest["zero_stage"] == 0:
        found, states = _of_stage_0(model, [name for name, _ in manifest["parameters"]])
    elif manifest["zero_stage"] == 3:
        found, states = _of_stage_3(shards, model["param_shapes"])
    else:
        found, states = _of_stages_1_and_2(shards)
    return found, next(iter(states.values()))["step"].item()


def _rank(path):
    words = path.name.split("_")
    return int(words[words.index("rank") + 1])


def _whole(parts, key):
    """(elements,) of a flattened parameter."""
    return parts[0].tensors[key] if len(parts) == 1 else torch.cat([part.tensors[key] for part in parts])


def _of_stage_0(model, names):
    state = model["optimizer"]
    if "fp32_groups" in state:  # low precision; these come first because `module` is rounded
        masters = [master for group in state["fp32_groups"] for master in group]
        state = state["optimizer_state_dict"]
    else:
        masters = [model["module"][name] for name in names]
    found = {
        name: [Fragment(name, 0, _flat(master, state["state"][index]))]
        for index, (name, master) in enumerate(zip(names, masters))
    }
    return found, state["state"]


def _of_stages_1_and_2(shards):
    found, filled = defaultdict(list), defaultdict(int)
    for shard in shards:
        states = shard["base_optimizer_state"]["state"]
        for group, addresses in enumerate(shard["param_slice_mappings"]):
            tensors = _flat(shard["single_partition_of_fp32_groups"][group], states[group])
            for name, address in addresses.items():
                found[name].append(_cut(name, filled[name], tensors, address.start, address.numel))
                filled[name] += address.numel
    return found, states


def _of_stage_3(shards, shapes):
    """shapes: {name: shape} of each vector, in the order in which the parameters lie in it."""
    found = defaultdict(list)
    for rank, shard in enumerate(shards):
        states = shard["optimizer_state_dict"]["state"]
        for group, shapes_in_vector in enumerate(shapes):
            tensors, offset = _flat(shard["fp32_flat_groups"][group], states[group]), 0
            for name, shape in shapes_in_vector.items():
                size = -(-shape.numel() // len(shards))
                start = min(rank * size, shape.numel())
                found[name].append(_cut(name, start, tensors, offset, min(size, shape.numel() - start)))
                offset += size
    return found, states


def _flat(master, state):
    return {"master": master.view(-1), **{key: state[key].view(-1) for key in KEYS[1:]}}


def _cut(name, start, tensors, offset, numel):
    return Fragment(name, start, {key: tensor[offset : offset + numel] for key, tensor in tensors.items()})
