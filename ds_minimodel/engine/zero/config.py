"""DeepSpeed's JSON for a run, and the constants of DeepSpeed that plans of memory and traffic rest on.

Nothing flows back from DeepSpeed's configuration. This module loads neither torch nor DeepSpeed.
"""

from ds_minimodel.engine.run import Run

NEVER = 10**9
# At most so many elements are reduced at once, or gathered ahead of their use. DeepSpeed's own 500 million are
# allocated whatever trains: 1 GB of memory, 2 in fp32.
BUCKET = 50_000_000
KEPT_LIVE = 10**9  # elements that stage 3 keeps gathered between the passes: its stage3_max_live_parameters


def accumulates_in_fp32(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Whether the gradients of `accumulation` micro-batches are added up in fp32 and not as they come."""
    return precision == "bf16" and zero_stage > 0 and accumulation > 1


def accumulates_in_place(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer: it adds up in fp32 beside each parameter and has no bucket."""
    return zero_stage == 1 and accumulates_in_fp32(precision, zero_stage, accumulation)


def deepspeed_config(run: Run, world_size: int, zero: dict | None = None) -> dict:
    """The JSON that DeepSpeed is given for `run` on `world_size` ranks among which samples are divided.

    zero: more for its "zero_optimization" (of `zero_settings`); DeepSpeed's own sizes where it is not given.
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
    if stage in (1, 2) and precision != "fp32" and not clip and not in_place:
        # Else DeepSpeed takes the norm of all gradients, in double precision, for nobody. In fp32 it looks there for
        # gradients that are not finite.
        config["zero_optimization"]["compute_grad_norm"] = False
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
        if accumulates_in_fp32(precision, stage, accumulation):
            config["data_types"] = {"grad_accum_dtype": "fp32"}
    elif precision == "fp16":
        # fairseq starts at 2^7, but for the sum of losses, which it divides after the backward pass. Ours is
        # the mean: smaller by the count of masked tokens.
        config["fp16"] = {"enabled": True, "initial_scale_power": 12}
    return config


def zero_settings(zero_stage: int, bucket: int, partitions_linear: bool, node_copy: int) -> dict[str, int | bool]:
    """Settings of "zero_optimization" beside the stage that make memory and traffic those of the plan.

    bucket: elements of the buffer through which gradients are reduced. partitions_linear: whether stage 3 partitions
    the weight of a linear layer. node_copy: ranks that hold another copy of what is partitioned (hpZ); 1: none.
    """
    if zero_stage == 0:
        return {}
    settings: dict[str, int | bool] = {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if zero_stage < 3:
        return settings
    # DeepSpeed's own linear keeps every input, also where weights are frozen; partitioned ones need it.
    settings |= {
        "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": BUCKET,
        "memory_efficient_linear": partitions_linear,
    }
    if node_copy > 1:
        settings["zero_hpz_partition_size"] = node_copy
    return settings
