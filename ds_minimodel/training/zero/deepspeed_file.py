"""DeepSpeed's JSON that a recipe may name (`engine.deepspeed`).

The recipe owns batches, precision, ZeRO stage, optimizer and schedule: such keys are refused, and
so is what is not offered. All else is DeepSpeed's to check. "auto", which other libraries fill in,
is as good as absent.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.config import Section
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_model

# Keys and sections that say what the recipe says.
OWNED = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
optimizer scheduler bf16 data_types fp16.enabled zero_optimization.stage
""".split()
# What is sent at once and where state lies, what is printed: it cannot change results, and is not
# recorded with a job.
INERT = """
zero_optimization comms_logger flops_profiler wall_clock_breakdown memory_breakdown steps_per_print
tensorboard wandb comet csv_monitor
""".split()
# Not offered where they are on: what has no effect here, though DeepSpeed takes it, and what
# changes the training or what checkpoints and plans rely on.
REFUSED = """
activation_checkpointing autotuning checkpoint compile curriculum_learning elasticity hybrid_engine
weight_quantization bfloat16 data_efficiency gradient_allreduce_op managed_gradient_accumulation
sequence_parallel_size tensor_parallel torch_autocast fp16.fp16_master_weights_and_grads
fp16.loss_scale zero_optimization.compute_grad_norm zero_optimization.elastic_checkpoint
zero_optimization.load_from_fp32_weights zero_optimization.offload_param
zero_optimization.sub_group_size zero_optimization.zenflow zero_optimization.zero_hpz_partition_size
zero_optimization.zero_quantized_gradients zero_optimization.zero_quantized_nontrainable_weights
zero_optimization.zero_quantized_weights
""".split()
# Values that count as off, of the refused keys for which 0 or false does not.
DEFAULTS: dict[str, Any] = {
    "managed_gradient_accumulation": True,
    "zero_optimization.sub_group_size": 10**9,
    "zero_optimization.compute_grad_norm": True,
    "zero_optimization.load_from_fp32_weights": True,
}


class DeepSpeedFile(Section):
    """A DeepSpeed JSON, or none.

    Attributes:
        path: as the recipe names it.
        settings: its content, without "auto".
    """

    path: str = ""
    settings: dict[str, Any] = {}

    def recorded(self) -> dict[str, Any]:
        """Return the settings that may change results: all that are not known to change none."""
        return {key: value for key, value in self.settings.items() if key not in INERT}


def read_named_file(value: object) -> object:
    """Return the DeepSpeedFile of a key's value: a path in a recipe, the file itself in Python."""
    if isinstance(value, str):
        return read_deepspeed_file(value)
    if value is None:
        return DeepSpeedFile()
    if not isinstance(value, DeepSpeedFile):
        raise ValueError("Input should be the path of a DeepSpeed JSON")
    return value


def read_deepspeed_file(path: str | Path) -> DeepSpeedFile:
    """Read a DeepSpeed JSON.

    Raises:
        UserError: it is none, or has keys that the recipe owns or that are not offered.
    """
    advice = "a DeepSpeed JSON is an object of settings, see ds_configs/"
    settings = _without_auto(read_model(path, dict[str, Any], advice))
    prefixes = tuple(f"{key}." for key in OWNED)
    owned = [key for key, _ in leaves(settings) if f"{key}.".startswith(prefixes)]
    refused = [key for key in REFUSED if not _is_off(settings, key)]
    if owned:
        raise UserError(f"{path}: the recipe says: {', '.join(owned)}; remove these keys")
    if refused:
        raise UserError(f"{path}: not offered: {', '.join(refused)}; remove these keys")
    return DeepSpeedFile(path=str(path), settings=settings)


def leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings; `above` is the path to them."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value


def _is_off(settings: Mapping[str, Any], key: str) -> bool:
    """Return whether a dotted key is absent, or says what holds without it."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        return not value.get("enabled", any(value.values()))
    return value in (None, DEFAULTS.get(key, 0))


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != "auto"
    }
