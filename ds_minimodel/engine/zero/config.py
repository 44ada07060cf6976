"""DeepSpeed's JSON for a run, and the constants of DeepSpeed on which memory and traffic depend.

A recipe may name such a JSON of its own (`engine.deepspeed`); its keys are declared in recipe/deepspeed_file.py and
come here as Run.deepspeed. What the recipe owns must agree in it, all else holds. Nothing flows back from DeepSpeed's
configuration. This module loads neither torch nor DeepSpeed.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import Execution
from ds_minimodel.engine.run import Run

NEVER = 10**9
# At most so many elements are reduced at once, or gathered ahead of their use. DeepSpeed's own 500 million are
# allocated even where few parameters train: 1 GB of memory, 2 in fp32.
BUCKET = 50_000_000
KEPT_LIVE = 10**9  # elements that stage 3 keeps gathered between the passes: its stage3_max_live_parameters
# ZeRO stages at which a part of the state may lie in host memory. DeepSpeed takes the optimizer's at stage 1 too, which
# is not tried here: stage 2 sends no more without accumulation, and keeps less.
OFFLOAD_STAGES = {"offload_optimizer": (2, 3), "offload_param": (3,)}


class ZeroMemory(NamedTuple):
    """Settings of Run.deepspeed that memory depends on.

    bucket, prefetch: elements, None where the file has none. overlaps: whether gradients are reduced beside the
    backward pass. offloads_optimizer, offloads_parameters: whether that state lies in host memory.
    """

    bucket: int | None = None
    prefetch: int | None = None
    overlaps: bool = False
    offloads_optimizer: bool = False
    offloads_parameters: bool = False


def zero_memory(settings: Mapping[str, Any]) -> ZeroMemory:
    """The ZeroMemory of Run.deepspeed."""
    zero = settings.get("zero_optimization") or {}
    return ZeroMemory(
        zero.get("reduce_bucket_size"),
        zero.get("stage3_prefetch_bucket_size"),
        bool(zero.get("overlap_comm")),
        *(_is_offloaded(settings, part) for part in OFFLOAD_STAGES),
    )


def _is_offloaded(settings: Mapping[str, Any], part: str) -> bool:
    return ((settings.get("zero_optimization") or {}).get(part) or {}).get("device", "none") != "none"


def accumulates_in_fp32(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Whether the gradients of `accumulation` micro-batches are added up in fp32 and not as they come."""
    return precision == "bf16" and zero_stage > 0 and accumulation > 1


def accumulates_in_place(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer: it adds up in fp32 beside each parameter and has no bucket."""
    return zero_stage == 1 and accumulates_in_fp32(precision, zero_stage, accumulation)


def needed_stage(
    execution: Execution, replicas: int, clip: float, settings: Mapping[str, Any], device_type: str
) -> int:
    """The ZeRO stage at which a recipe's `execution` runs: its own, or 0 where that gives the same with less work.

    On a CPU one replica has nothing to partition, but stages 1 and 2 copy gradients and weights as if it had. They
    stay where stage 0 would round otherwise (sums of bf16 gradients, clipping), in fp16, and where the recipe names
    settings of DeepSpeed's. clip: of the optimizer. settings: Run.deepspeed.
    """
    precision, stage = execution.precision, execution.zero_stage
    if stage not in (1, 2) or replicas > 1 or device_type != "cpu" or precision == "fp16" or clip or settings:
        return stage
    return stage if accumulates_in_fp32(precision, stage, execution.split(replicas).accumulation) else 0


def deepspeed_config(run: Run, world_size: int, zero: dict | None = None) -> dict:
    """The JSON that DeepSpeed is given for `run` on `world_size` ranks among which samples are divided.

    zero: more for its "zero_optimization" (Partition.zero); DeepSpeed's own sizes where it is not given.
    """
    execution, clip = run.execution, run.optimizer.clip
    precision, stage = execution.precision, execution.zero_stage
    micro, accumulation = execution.split(world_size)
    config: dict = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "steps_per_print": NEVER,
        "zero_optimization": {"stage": stage, **(zero or {})},
    }
    in_place = accumulates_in_place(precision, stage, accumulation)
    offloads = _is_offloaded(run.deepspeed, "offload_optimizer")
    if stage in (1, 2) and precision != "fp32" and not clip and not in_place and not offloads:
        # Else DeepSpeed takes the norm of all gradients, in double precision, and nothing reads it. In fp32 it looks
        # there for gradients that are not finite.
        config["zero_optimization"]["compute_grad_norm"] = False
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
        if accumulates_in_fp32(precision, stage, accumulation):
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    elif precision == "fp16":
        # fairseq starts at 2^7, but for the sum of losses, which it divides after the backward pass. Ours is
        # the mean: smaller by the count of masked tokens.
        config["fp16"] = {"enabled": True, "initial_scale_power": 12}
    if offloads:
        config["zero_force_ds_cpu_optimizer"] = False  # its own would be compiled first; torch's is handed over
    _add(config, run)
    return config


def _add(config: dict[str, Any], run: Run) -> None:
    """Add to DeepSpeed's JSON what Run.deepspeed has and the recipe does not own."""
    for key, value in _leaves(run.deepspeed):
        *sections, last = key.split(".")
        if key in _owned(run, 1) or (sections or [last])[0] in _OF_THE_RECIPE:
            continue
        if sections == ["fp16"] and run.execution.precision != "fp16":
            continue
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    if not config.get("comms_logger", {}).get("enabled"):
        config.pop("comms_logger", None)  # DeepSpeed takes any such section for an order to log


def check_agreement(run: Run, replicas: int) -> None:
    """UserError where Run.deepspeed disagrees with the recipe; replicas: ranks among which samples are divided."""
    refuse_disagreements(disagreements(run, replicas))


def refuse_disagreements(found: Collection[str]) -> None:
    """UserError where any were found."""
    if found:
        raise UserError(
            f"engine.deepspeed: {'; '.join(found)}; the recipe counts: remove these keys from the file, or make them "
            "agree"
        )


def disagreements(run: Run, replicas: int, unknown: Collection[str] = ()) -> list[str]:
    """Each key of Run.deepspeed that has another value than the recipe, or offloads at a stage that cannot.

    replicas: ranks among which samples are divided. unknown: names of the recipe's values that are not known yet.
    """
    owned, stage, found = _owned(run, replicas), run.execution.zero_stage, []
    for key, value in _leaves(run.deepspeed):
        name, ours = owned.get(key, (None, None))
        if name is None and key.partition(".")[0] in _OF_THE_RECIPE:
            found.append(f"{key} {json.dumps(value)}: the recipe has no such setting")
        elif name is not None and name not in unknown and value != ours and value not in _same(key, run):
            found.append(f"{key} is {json.dumps(value)} in the file, but {name} {json.dumps(ours)} in the recipe")
    for part, stages in OFFLOAD_STAGES.items():
        if _is_offloaded(run.deepspeed, part) and stage not in stages:
            found.append(
                f"zero_optimization.{part} works at ZeRO stage {' and '.join(map(str, stages))}, but engine.zero_stage "
                f"is {stage}"
            )
    return found


def _same(key: str, run: Run) -> list[str]:
    """Other values of a key that mean what the recipe has."""
    if key == "optimizer.type":
        return ["Adam"]  # DeepSpeed's is AdamW unless adam_w_mode is false
    if key == "scheduler.type" and run.schedule.warmup_steps >= run.schedule.steps - 1:
        return ["WarmupLR"]  # it holds the rate after the warm-up, where ours falls to 0
    return []


# Sections in which all is the recipe's.
_OF_THE_RECIPE = ("optimizer", "scheduler", "bf16", "data_types")


def _owned(run: Run, replicas: int) -> dict[str, tuple[str, Any]]:
    """{key of DeepSpeed's JSON: (what the recipe calls it, its value)} of what the recipe owns."""
    schedule, execution, rule = run.schedule, run.execution, run.optimizer
    precision, stage, accumulation = execution.precision, execution.zero_stage, execution.split(replicas).accumulation
    sums_in_fp32 = accumulation == 1 or accumulates_in_fp32(precision, stage, accumulation)
    return {
        "train_batch_size": ("batch_size", execution.batch_size),
        "train_micro_batch_size_per_gpu": ("engine.micro_batch_size", execution.micro_batch_size),
        "gradient_accumulation_steps": ("batch_size / (engine.micro_batch_size x ranks)", accumulation),
        "gradient_clipping": ("clip", rule.clip),
        "zero_optimization.stage": ("engine.zero_stage", stage),
        "fp16.enabled": ("engine.precision: fp16", precision == "fp16"),
        "bf16.enabled": ("engine.precision: bf16", precision == "bf16"),
        "data_types.grad_accum_dtype": ("engine.precision: sums", "fp32" if sums_in_fp32 else precision),
        "optimizer.type": ("the optimizer", "AdamW"),
        "optimizer.params.torch_adam": ("torch's AdamW", True),
        "optimizer.params.adam_w_mode": ("AdamW", True),
        "optimizer.params.lr": ("lr", schedule.lr),
        "optimizer.params.betas": ("beta1 and beta2", [rule.beta1, rule.beta2]),
        "optimizer.params.eps": ("eps", rule.eps),
        "optimizer.params.weight_decay": ("weight_decay", rule.weight_decay),
        "scheduler.type": ("the schedule, which falls to 0 after the warm-up,", "WarmupDecayLR"),
        "scheduler.params.last_batch_iteration": ("the step before the first", -1),
        "scheduler.params.warmup_min_lr": ("the rate before the first step", 0),
        "scheduler.params.warmup_max_lr": ("lr", schedule.lr),
        "scheduler.params.warmup_num_steps": ("warmup_steps", schedule.warmup_steps),
        "scheduler.params.warmup_type": ("the warm-up", "linear"),
        "scheduler.params.total_num_steps": ("steps", schedule.steps),
    }


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested mappings."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value


def zero_settings(
    zero_stage: int, bucket: int, partitions_linear: bool, node_copy: int, prefetch: int = BUCKET
) -> dict[str, int | bool]:
    """Settings of "zero_optimization" beside the stage that make a partition (engine/partition.py) what runs.

    bucket: elements of the buffer through which gradients are reduced. partitions_linear: whether stage 3 partitions
    the weight of a linear layer. node_copy: ranks that hold another copy of what is partitioned (hpZ); 1: none.
    prefetch: elements that stage 3 gathers ahead of their use.
    """
    if zero_stage == 0:
        return {}
    settings: dict[str, int | bool] = {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if zero_stage < 3:
        return settings
    # DeepSpeed's own linear keeps every input, also where weights are frozen; partitioned ones need it.
    settings |= {
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": prefetch,
        "memory_efficient_linear": partitions_linear,
    }
    if node_copy > 1:
        settings["zero_hpz_partition_size"] = node_copy
    return settings
