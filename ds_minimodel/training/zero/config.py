"""DeepSpeed's JSON for a run, and the constants of DeepSpeed on which memory and traffic depend.

A recipe may name such a JSON of its own (`engine.deepspeed`), which deepspeed_file.py reads and
which comes here as Run.deepspeed. What the recipe owns is not in it; all else is DeepSpeed's to
read and to check. Nothing flows back from DeepSpeed's configuration. This module loads neither
torch nor, before a file is checked, DeepSpeed.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from ds_minimodel.common.errors import OtherRankError, UserError, reason_of
from ds_minimodel.training.run import Execution, Run
from ds_minimodel.training.zero.deepspeed_file import leaves

NEVER = 10**9
# At most so many elements are reduced at once, or gathered ahead of their use. DeepSpeed's own 500
# million are allocated even where few parameters train: 1 GB of memory, 2 in fp32.
BUCKET = 50_000_000
# ZeRO stages at which optimizer state may lie in host memory. DeepSpeed takes stage 1 too, which is
# not tried here: stage 2 sends no more without accumulation, and keeps less.
OFFLOAD_STAGES = (2, 3)


class ZeroMemory(NamedTuple):
    """Settings of Run.deepspeed that memory depends on.

    Attributes:
        bucket: elements of the buffer that gradients are reduced through, None where the file says
            nothing of it.
        prefetch: elements that are gathered ahead of their use, or None.
        overlaps: whether gradients are reduced beside the backward pass.
        offloads_optimizer: whether optimizer state and gradients lie in host memory.
    """

    bucket: int | None = None
    prefetch: int | None = None
    overlaps: bool = False
    offloads_optimizer: bool = False


def zero_memory(settings: Mapping[str, Any]) -> ZeroMemory:
    """Return the ZeroMemory of Run.deepspeed."""
    values = dict(leaves(settings))

    def elements(key: str) -> int | None:
        # DeepSpeed's pages write 5e8, which is no int.
        value = values.get(f"zero_optimization.{key}")
        return int(value) if isinstance(value, (int, float)) else None

    device = values.get("zero_optimization.offload_optimizer.device", "none")
    return ZeroMemory(
        bucket=elements("reduce_bucket_size"),
        prefetch=elements("stage3_prefetch_bucket_size"),
        overlaps=bool(values.get("zero_optimization.overlap_comm")),
        offloads_optimizer=device != "none",
    )


def accumulates_in_fp32(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Return whether gradients of `accumulation` micro-batches are added up in fp32.

    Otherwise they are added up in the precision in which they come.
    """
    return precision == "bf16" and zero_stage > 0 and accumulation > 1


def accumulates_in_place(precision: str, zero_stage: int, accumulation: int) -> bool:
    """Return whether DeepSpeed takes its BF16_Optimizer.

    That adds up in fp32 beside each parameter, and has no bucket.
    """
    return zero_stage == 1 and accumulates_in_fp32(precision, zero_stage, accumulation)


def needed_stage(
    execution: Execution,
    replicas: int,
    tensor_parallel: int,
    clip: float,
    settings: Mapping[str, Any],
    device_type: str,
) -> int:
    """Choose the ZeRO stage at which a recipe's `execution` runs.

    It is the recipe's, or another that gives the same weights with less work. (On a CPU without
    AVX512 the last few numbers of a parameter, which fill no vector, may be rounded otherwise.)

    On a CPU one replica has nothing to partition, but stages 1 and 2 copy gradients and weights as
    if it had: stage 0 runs in their place. They stay where stage 0 would round otherwise (sums of
    bf16 gradients, clipping), in fp16, and where the recipe names settings of DeepSpeed's.

    Stage 1 runs in place of stage 0 where low-precision gradients are clipped under tensor
    parallelism: at stage 0 their norm comes out wrong, because DeepSpeed 0.19.8 asks the gradients,
    not the parameters, whether they are parts. Stage 1 costs no more.

    Args:
        execution: as the recipe has it.
        replicas: ranks among which samples are divided.
        tensor_parallel: ranks that hold one replica.
        clip: largest norm of the gradient, 0 where it is not clipped.
        settings: Run.deepspeed.
        device_type: "cpu" or "cuda".
    """
    precision = execution.precision
    stage = execution.zero_stage
    if stage == 0 and tensor_parallel > 1 and precision != "fp32" and clip:
        return 1
    if stage not in (1, 2) or replicas > 1 or device_type != "cpu":
        return stage
    if precision == "fp16" or clip or settings:
        return stage
    accumulation = execution.split(replicas).accumulation
    return stage if accumulates_in_fp32(precision, stage, accumulation) else 0


def deepspeed_config(run: Run, replicas: int, zero: dict | None = None) -> dict:
    """Return the JSON that DeepSpeed is given.

    Where Run.deepspeed has a setting that the recipe does not own, it holds.

    Args:
        run: all numbers of the run.
        replicas: ranks among which samples are divided.
        zero: more for its "zero_optimization" (Partition.zero), by default nothing.
    """
    execution = run.execution
    clip = run.optimizer.clip
    precision = execution.precision
    stage = execution.zero_stage
    micro, accumulation = execution.split(replicas)
    in_place = accumulates_in_place(precision, stage, accumulation)
    offloads = zero_memory(run.deepspeed).offloads_optimizer
    # fairseq's loss scale starts at 2^7, but for the sum of losses, which it divides after the
    # backward pass. Ours is the mean: smaller by the count of masked tokens.
    defaults: dict[str, Any] = {"steps_per_print": NEVER, "zero_optimization": zero or {}}
    if precision == "fp16":
        defaults["fp16"] = {"initial_scale_power": 12}
    owned: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "zero_optimization": {"stage": stage},
    }
    if precision != "fp32":
        owned[precision] = {"enabled": True}
    if accumulates_in_fp32(precision, stage, accumulation):
        owned["data_types"] = {"grad_accum_dtype": "fp32"}
    if stage in (1, 2) and precision != "fp32" and not clip and not in_place and not offloads:
        # Else DeepSpeed takes the norm of all gradients, in double precision, and nothing reads it.
        # In fp32 it looks there for gradients that are not finite.
        owned["zero_optimization"]["compute_grad_norm"] = False
    if offloads:
        # DeepSpeed's optimizer would be compiled first; torch's is handed over.
        owned["zero_force_ds_cpu_optimizer"] = False
    left_out = {"fp16"} if precision != "fp16" else set()
    if not dict(leaves(run.deepspeed)).get("comms_logger.enabled"):
        # DeepSpeed takes any such section for an order to log.
        left_out.add("comms_logger")
    of_file = {key: value for key, value in run.deepspeed.items() if key not in left_out}
    return _merged(_merged(defaults, of_file), owned)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested mappings in one; `above` counts where both have a key."""
    both = {
        key: _merged(value, above[key])
        for key, value in below.items()
        if isinstance(value, Mapping) and isinstance(above.get(key), Mapping)
    }
    return {**below, **above, **both}


def check_deepspeed(run: Run, replicas: int) -> None:
    """Check the DeepSpeed JSON of a run.

    Args:
        run: all numbers of the run.
        replicas: ranks among which samples are divided.

    Raises:
        UserError: it offloads at a stage that cannot, or DeepSpeed does not take it.
    """
    from ds_minimodel.training.zero import start

    stage = run.execution.zero_stage
    if zero_memory(run.deepspeed).offloads_optimizer and stage not in OFFLOAD_STAGES:
        raise UserError(
            f"{run.deepspeed_file}: zero_optimization.offload_optimizer works at stages 2 and 3, "
            f"but engine.zero_stage is {stage}"
        )
    if run.deepspeed:
        with deepspeeds_refusals(run):
            start.check(deepspeed_config(run, replicas))


@contextlib.contextmanager
def deepspeeds_refusals(run: Run) -> Iterator[None]:
    """Raise what DeepSpeed finds wrong with a recipe's file as a UserError of one line."""
    try:
        yield
    except Exception as error:
        is_not_of_the_file = isinstance(error, (UserError, OtherRankError, OSError, RuntimeError))
        if not run.deepspeed or is_not_of_the_file:
            raise
        faults = [str(error).partition("\n")[0]]
        if isinstance(error, ValidationError):
            faults = [
                f"{'.'.join(map(str, fault['loc']))}: {reason_of(fault)}"
                for fault in error.errors()
            ]
        raise UserError(
            f"{run.deepspeed_file}: DeepSpeed does not take it: {'; '.join(faults)}"
        ) from error


def zero_settings(
    zero_stage: int, bucket: int, *, partitions_linear: bool
) -> dict[str, int | bool]:
    """Return settings of "zero_optimization" that make a partition (training/partition.py) run.

    Args:
        zero_stage: 0 to 3.
        bucket: elements of the buffer through which gradients are reduced.
        partitions_linear: whether stage 3 partitions the weight of a linear layer.
    """
    if zero_stage == 0:
        return {}
    settings: dict[str, int | bool] = {
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if zero_stage == 3:
        settings |= {
            "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": BUCKET,
            # By default a billion elements stay gathered from one pass to the next.
            "stage3_max_live_parameters": BUCKET,
            "stage3_max_reuse_distance": 0,
            # DeepSpeed's linear function keeps every input, also where weights are frozen;
            # partitioned ones need it.
            "memory_efficient_linear": partitions_linear,
        }
    return settings
