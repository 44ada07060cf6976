"""DeepSpeed's checkpoint files: taken into memory instead of written, and read at any ZeRO stage.

DeepSpeed's universal checkpoints do not know stage 0, nor the way between stage 3 and the others.
The files are read as DeepSpeed's own converter reads them
(deepspeed/checkpoint/ds_to_universal.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from ds_minimodel.training.zero.state import MASTER, MOMENTS, Fragment, write_state

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

# The only classes that DeepSpeed's checkpoints name besides torch's own. Nothing else is unpickled.
KNOWN_CLASSES = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]

# The fragments of each parameter by its name, in the order of their starts.
Fragments = dict[str, list[Fragment]]


def load_file(path: Path) -> Any:
    """Return a file of a checkpoint, mapped, on the CPU; only KNOWN_CLASSES are unpickled."""
    with torch.serialization.safe_globals(KNOWN_CLASSES):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


class EngineFiles:
    """The files that DeepSpeed writes of an engine's training state, without the frozen parameters.

    Args:
        engine: DeepSpeed's.
        copy: makes of a state to be written one that training no longer changes.
    """

    def __init__(self, engine: DeepSpeedEngine, copy: Callable[[Any], Any]):
        self.engine = engine
        self.copier = _Copier(copy)
        engine.checkpoint_engine = self.copier
        # DeepSpeed copies a script beside the checkpoints: on a full disk rank 0 alone would fail.
        engine._copy_recovery_script = lambda _folder: None

    def take(self, folder: Path, name: str, step: int) -> dict[Path, Any]:
        """Copy the training state.

        Args:
            folder: of the checkpoints.
            name: of this one.
            step: number of steps done.

        Returns:
            {path: copied state} of the files that make this rank's part of the checkpoint.
        """
        self.engine.save_checkpoint(
            folder,
            tag=name,
            save_latest=False,
            client_state={"step": step},
            exclude_frozen_parameters=True,
        )
        states = self.copier.states
        self.copier.states = {}
        return states

    def load(self, checkpoint: Path, manifest: dict, tensor_rank: int) -> None:
        """Set masters, Adam moments, step count and parameters from a checkpoint.

        It may be of any stage and number of ranks. Every rank maps all files of its part of the
        model, but holds one whole parameter at a time.

        Args:
            checkpoint: its folder.
            manifest: its manifest.
            tensor_rank: index of this rank's part of the model.
        """
        saved, steps_taken = saved_fragments(checkpoint, manifest, tensor_rank)
        write_state(self.engine, lambda name, part: _whole(saved[name], part), steps_taken)
        # DeepSpeed's profiler counts by steps, its monitors by samples.
        self.engine.global_steps = manifest["step"]
        self.engine.global_samples = manifest["step"] * self.engine.train_batch_size()


class _Copier(CheckpointEngine):
    """A writer of files, for DeepSpeed, that keeps copies of what it is to write in `states`."""

    def __init__(self, copy: Callable[[Any], Any]):
        super().__init__()
        self.copy = copy
        self.states: dict[Path, Any] = {}

    def create(self, info: Any) -> None:
        self.states = {}

    def save(self, state_dict: Any, path: str) -> None:
        self.states[Path(path)] = self.copy(state_dict)

    def load(self, path: str, map_location: Any = None) -> Any:
        raise NotImplementedError

    def commit(self, info: Any) -> bool:
        return True


def saved_fragments(folder: Path, manifest: dict, tensor_rank: int) -> tuple[Fragments, float]:
    """Map one tensor rank's part of a checkpoint; no tensor is read.

    Args:
        folder: of the checkpoint.
        manifest: its manifest.
        tensor_rank: index of the part.

    Returns:
        (its fragments, optimizer steps taken).
    """
    part = f"*mp_rank_{tensor_rank:02}"
    models = sorted(folder.glob(f"{part}_model_states.pt"), key=_rank)
    optimizers = sorted(folder.glob(f"{part}_optim_states.pt"), key=_rank)
    shards = [load_file(path)["optimizer_state_dict"] for path in optimizers]
    model = load_file(models[0])
    if manifest["zero_stage"] == 0:
        fragments, states = _of_stage_0(model, manifest["parameters"])
    elif manifest["zero_stage"] == 3:
        fragments, states = _of_stage_3(shards, model["param_shapes"])
    else:
        fragments, states = _of_stages_1_and_2(shards)
    return fragments, next(iter(states.values()))["step"].item()


def _rank(path: Path) -> int:
    return int(path.name.partition("rank_")[2].partition("_")[0])


def _whole(fragments: list[Fragment], part: str) -> torch.Tensor:
    """Return a part of the state of a flattened parameter, (elements,)."""
    tensors = [fragment.tensors[part] for fragment in fragments]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _of_stage_0(model: dict, names: list[str]) -> tuple[Fragments, dict]:
    state = model["optimizer"]
    if "fp32_groups" in state:
        # In low precision these are the masters, of which `module` holds rounded ones.
        masters = [master for group in state["fp32_groups"] for master in group]
        state = state["optimizer_state_dict"]
    else:
        masters = [model["module"][name] for name in names]
    fragments = {
        name: [Fragment(name, 0, _flat(master, state["state"][index]))]
        for index, (name, master) in enumerate(zip(names, masters, strict=True))
    }
    return fragments, state["state"]


def _of_stages_1_and_2(shards: list[dict]) -> tuple[Fragments, dict]:
    fragments: Fragments = defaultdict(list)
    filled: dict[str, int] = defaultdict(int)
    for shard in shards:
        states = shard["base_optimizer_state"]["state"]
        for group, addresses in enumerate(shard["param_slice_mappings"]):
            tensors = _flat(shard["single_partition_of_fp32_groups"][group], states[group])
            for name, address in addresses.items():
                fragment = _cut(name, filled[name], tensors, address.start, address.numel)
                fragments[name].append(fragment)
                filled[name] += address.numel
    return fragments, states


def _of_stage_3(shards: list[dict], shapes: list[dict]) -> tuple[Fragments, dict]:
    """Return the fragments of all ranks' shards, and the states of the last.

    Args:
        shards: of each rank.
        shapes: {name: shape} of each vector, in the order in which the parameters lie in it.
    """
    fragments: Fragments = defaultdict(list)
    for rank, shard in enumerate(shards):
        states = shard["optimizer_state_dict"]["state"]
        for group, shapes_in_vector in enumerate(shapes):
            tensors = _flat(shard["fp32_flat_groups"][group], states[group])
            offset = 0
            for name, shape in shapes_in_vector.items():
                size = -(-shape.numel() // len(shards))
                start = min(rank * size, shape.numel())
                # The last partition is padded.
                numel = min(size, shape.numel() - start)
                fragments[name].append(_cut(name, start, tensors, offset, numel))
                offset += size
    return fragments, states


def _flat(master: torch.Tensor, state: dict) -> dict[str, torch.Tensor]:
    return {MASTER: master.view(-1), **{moment: state[moment].view(-1) for moment in MOMENTS}}


def _cut(
    name: str, start: int, tensors: dict[str, torch.Tensor], offset: int, numel: int
) -> Fragment:
    """Return the fragment that lies from `offset` on in the vectors of a group."""
    of_fragment = {part: tensor[offset : offset + numel] for part, tensor in tensors.items()}
    return Fragment(name, start, of_fragment)
