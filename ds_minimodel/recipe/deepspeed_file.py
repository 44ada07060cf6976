"""DeepSpeed's JSON that a recipe may name (`engine.deepspeed`).

The recipe owns batches, precision, ZeRO stage, optimizer and schedule: such keys may stand in the file where they agree
(training/zero/config.py compares them). What is not offered is refused here. All else is DeepSpeed's to check. "auto",
which other libraries fill in, is as good as absent.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.sections import Section, each_once

# Keys that are not recorded with a job. The recipe's own keys decide, and are recorded:
OWNED = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "bf16",
    "data_types",
}
# What is sent at once and where state lies, what is printed: it cannot change results.
INERT = {
    "zero_optimization",
    "comms_logger",
    "flops_profiler",
    "wall_clock_breakdown",
    "memory_breakdown",
    "steps_per_print",
    "tensorboard",
    "wandb",
    "comet",
    "csv_monitor",
}
# {key: the value that it may have, beside being off} of what is not offered: it would change what is trained, or what
# checkpoints and plans rely on.
REFUSED: dict[str, Any] = {
    "autotuning": None,
    "bfloat16": None,  # another name of the recipe's bf16
    "checkpoint": None,
    "data_efficiency": None,
    "gradient_allreduce_op": "mean",
    "managed_gradient_accumulation": True,
    "sequence_parallel_size": 1,
    "tensor_parallel": None,
    "torch_autocast": None,
    "fp16.auto_cast": False,
    "fp16.fp16_master_weights_and_grads": False,
    "fp16.loss_scale": 0,  # a scale that moves, whose state checkpoints hold
    "zero_optimization.compute_grad_norm": True,
    "zero_optimization.cpu_offload": False,
    "zero_optimization.cpu_offload_param": False,
    "zero_optimization.elastic_checkpoint": False,  # files of another form
    "zero_optimization.legacy_stage1": False,
    "zero_optimization.load_from_fp32_weights": True,  # else a resumed run loses the masters' last bits
    "zero_optimization.offload_optimizer.nvme_path": None,
    "zero_optimization.offload_optimizer.super_offload": False,
    "zero_optimization.offload_param": None,
    "zero_optimization.pipeline_loading_checkpoint": False,
    "zero_optimization.stage3_module_granularity_threshold": 0,  # its backward pass fails on our modules
    "zero_optimization.sub_group_size": 10**9,
    "zero_optimization.zenflow": None,
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.zero_quantized_gradients": False,
    "zero_optimization.zero_quantized_nontrainable_weights": False,
    "zero_optimization.zero_quantized_weights": False,
}


class DeepSpeedFile(Section):
    """A DeepSpeed JSON. path: as the recipe names it. settings: its content, without "auto"."""

    path: str
    settings: dict[str, Any]

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that may change results: all that are not known to change none."""
        return {key: value for key, value in self.settings.items() if key not in OWNED | INERT}


def read_named_file(value: object) -> object:
    """What a key has whose value in the recipe is the path of a DeepSpeed JSON, and in Python what it holds."""
    if isinstance(value, str):
        return read_deepspeed_file(value)
    if value is not None and not isinstance(value, DeepSpeedFile):
        raise ValueError("Input should be the path of a DeepSpeed JSON")
    return value


def read_deepspeed_file(path: str | Path) -> DeepSpeedFile:
    """The settings in a JSON file; UserError for a file that is none, and for what is not offered."""
    settings = _without_auto(_parsed(path))
    refused = [key for key, harmless in REFUSED.items() if not _is_off(settings, key, harmless)]
    if refused:
        raise UserError(f"{path}: not offered: {', '.join(refused)}; remove these keys")
    return DeepSpeedFile(path=str(path), settings=settings)


def _is_off(settings: Mapping[str, Any], key: str, harmless: Any) -> bool:
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return not value.get("enabled", any(value.values())) if isinstance(value, Mapping) else value in (None, harmless)


def _parsed(path: str | Path) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_bytes(), object_pairs_hook=_each_key_once)
    except OSError as error:
        raise UserError(f"engine.deepspeed: {path}: {error.strerror}; name a DeepSpeed JSON, see ds_configs/") from None
    except (ValueError, RecursionError) as error:  # of JSON, of UTF-8, of a key
        raise UserError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a DeepSpeed JSON is an object of settings; see ds_configs/")
    return values


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    each_once([key for key, _ in pairs])
    return dict(pairs)


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != "auto"
    }
