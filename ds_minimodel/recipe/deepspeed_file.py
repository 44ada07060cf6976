"""DeepSpeed's JSON that a recipe may name (`engine.deepspeed`): the keys that are taken, and why others are not.

The recipe owns batches, precision, ZeRO stage, optimizer and schedule: such keys may stand in the file where they agree
(engine/zero/settings.py compares them). What else is declared here holds as the file has it. "auto", which other
libraries fill in, is as good as absent.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict, ValidationError
from pydantic_core import CoreSchema, core_schema

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.sections import DECIDES_NOTHING, Decides, Few, Section, UpTo
from ds_minimodel.recipe.yaml12 import line_of, problem_of, read_yaml, refusal

LARGEST = 1 << 19  # bytes
# The recipe's own key decides and is recorded.
OWNED = Decides(recorded=False, compared=False)
Owned = Annotated[Any, OWNED]
Elements = Annotated[int, Strict(False), Field(gt=0), UpTo(10**12)]  # DeepSpeed's pages write 5e8
Scale = Annotated[int, Field(ge=0), UpTo(10**9)]


class Fp16(Section):
    """How the loss scale moves decides which steps are skipped, and so the result."""

    enabled: Owned = None
    initial_scale_power: Annotated[int, Field(ge=0), UpTo(31)] | None = None  # 12 where not given
    loss_scale_window: Scale | None = None
    hysteresis: Scale | None = None
    consecutive_hysteresis: bool | None = None
    min_loss_scale: Scale | None = None


class Offload(Section):
    """Where optimizer state, or partitioned weights, lie."""

    device: Literal["cpu", "none"] = "none"
    pin_memory: bool | None = None  # pinned memory copies faster, and cannot be paged out


class ZeroOptimization(Section):
    """What is sent at once, and where state lies: memory and time."""

    stage: Owned = None
    overlap_comm: bool | None = None  # gradients are reduced beside the backward pass; takes a second bucket
    reduce_bucket_size: Elements | None = None  # fewer elements: less memory, more messages
    allgather_bucket_size: Elements | None = None
    stage3_prefetch_bucket_size: Elements | None = None  # gathered ahead of their use
    offload_optimizer: Offload | None = None
    offload_param: Offload | None = None


class CommsLogger(Section):
    """Counts the engine's collectives; a table of them is printed at the end of a run."""

    enabled: bool = False
    verbose: bool | None = None  # a line for each
    debug: bool | None = None  # with the name of who calls
    prof_all: bool | None = None
    prof_ops: list[str] | None = None


class FlopsProfiler(Section):
    """Times and counts the modules in one step, and prints them."""

    enabled: bool = False
    profile_step: Annotated[int, Field(gt=0), UpTo(10**9)] | None = None
    module_depth: Annotated[int, Field(ge=-1), UpTo(10**4)] | None = None
    top_modules: Few | None = None
    detailed: bool | None = None


class DeepSpeedFile(Section):
    """All keys that are taken."""

    train_batch_size: Owned = None
    train_micro_batch_size_per_gpu: Owned = None
    gradient_accumulation_steps: Owned = None
    gradient_clipping: Owned = None
    optimizer: Owned = None
    scheduler: Owned = None
    bf16: Owned = None
    data_types: Owned = None
    fp16: Fp16 | None = None
    zero_optimization: Annotated[ZeroOptimization | None, DECIDES_NOTHING] = None
    comms_logger: Annotated[CommsLogger | None, DECIDES_NOTHING] = None
    flops_profiler: Annotated[FlopsProfiler | None, DECIDES_NOTHING] = None
    wall_clock_breakdown: Annotated[bool | None, DECIDES_NOTHING] = None  # prints the times of each pass and update
    memory_breakdown: Annotated[bool | None, DECIDES_NOTHING] = None  # prints memory in use before and after them
    steps_per_print: Annotated[Elements | None, DECIDES_NOTHING] = None  # prints skipped steps, rate and betas

    def recorded(self) -> dict[str, Any]:
        """The settings that decide results, where the file has any; {} where it has none."""
        fp16 = self.fp16.recorded() if self.fp16 else {}
        given = {key: value for key, value in fp16.items() if value is not None}
        return {"fp16": given} if given else {}

    def given(self) -> dict[str, Any]:
        """The keys of the file, as JSON."""
        return self.model_dump(exclude_unset=True)


# Why known keys are not taken.
_REASONS = {
    "checkpoints are this program's (docs/checkpoints.md)": "checkpoint datastates nebula "
    "zero_optimization.stage3_gather_16bit_weights_on_model_save zero_optimization.load_from_fp32_weights",
    "metrics.jsonl and TensorBoard's events in the workdir have what it would write": "tensorboard wandb comet "
    "csv_monitor flops_profiler.output_file",
    "it would change the batches, which are functions of the recipe": "autotuning curriculum_learning data_efficiency "
    "dataloader_drop_last elasticity managed_gradient_accumulation",
    "it would change the model, which the recipe describes": "compression_training expert_parallel hybrid_engine "
    "pipeline progressive_layer_drop quantize_training sparse_attention weight_quantization",
    "engine.tensor_parallel of the recipe divides the model": "tensor_parallel",
    "DeepSpeed's drops gradients above frozen layers without a word": "activation_checkpointing",
    "what it makes rounds otherwise, and the engine is not tried with it": "compile",
    "engine.precision says in what is computed; masters and sums are in fp32": "amp torch_autocast "
    "communication_data_type bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states bf16.immediate_grad_update "
    "fp16.auto_cast fp16.fp16_master_weights_and_grads",
    "checkpoints hold the state of a scale that moves": "fp16.loss_scale",
    "the loss is already divided by the count of the whole batch": "gradient_allreduce_op gradient_predivide_factor "
    "prescale_gradients",
    "the optimizer is torch's AdamW, and this is set where that needs it": "zero_allow_untested_optimizer "
    "zero_force_ds_cpu_optimizer",
    "it changes the process and not the training": "disable_python_gc dump_state log_level",
    "its name is offload_optimizer: {device: cpu} now": "zero_optimization.cpu_offload",
    "its name is offload_param: {device: cpu} now": "zero_optimization.cpu_offload_param",
    "its updates come late, so that results are others": "zero_optimization.zenflow",
    "it rounds what is sent": "zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients "
    "zero_optimization.zero_quantized_nontrainable_weights",
    "the plan of memory and traffic sets it (docs/plan.md)": "disable_allgather sparse_gradients "
    "zero_optimization.allgather_partitions zero_optimization.compute_grad_norm zero_optimization.contiguous_gradients "
    "zero_optimization.memory_efficient_linear zero_optimization.reduce_scatter "
    "zero_optimization.round_robin_gradients "
    "zero_optimization.stage3_max_live_parameters zero_optimization.stage3_max_reuse_distance "
    "zero_optimization.stage3_param_persistence_threshold zero_optimization.stage3_model_persistence_threshold "
    "zero_optimization.sub_group_size zero_optimization.zero_hpz_partition_size",
    "a disk below the optimizer is not tried; host memory is (device: cpu)": "aio "
    "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_optimizer.buffer_count "
    "zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write "
    "zero_optimization.offload_param.nvme_path zero_optimization.offload_param.buffer_count "
    "zero_optimization.offload_param.buffer_size zero_optimization.offload_param.max_in_cpu",
    "all of the optimizer state is in one place": "zero_optimization.offload_optimizer.ratio "
    "zero_optimization.offload_optimizer.super_offload",
}
REFUSED = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}


def read_deepspeed_file(path: str | Path) -> DeepSpeedFile:
    """The settings in a JSON file; UserError, with file, line and key, for one that is not taken."""
    values, tree = _parsed(path)
    for key in _keys(values):
        if key in REFUSED:
            raise UserError(f"{path}:{line_of(tree, key.split('.'))}: {key} is not taken: {REFUSED[key]}; remove it")
    try:
        return DeepSpeedFile.model_validate(_without_auto(values))
    except ValidationError as error:
        raise UserError(refusal(path, tree, error, DeepSpeedFile)) from None


def _parsed(path: str | Path) -> tuple[dict[str, Any], yaml.Node | None]:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        text = data.decode()
    except OSError as error:
        raise UserError(f"engine.deepspeed: {path}: {error.strerror}; name a DeepSpeed JSON, see ds_configs/") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; convert the file") from None
    if len(data) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST:,} bytes; that is no DeepSpeed JSON")
    try:
        values, tree = read_yaml(text)  # of which JSON is a part; it says where, and refuses a key that is there twice
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(f"{path}:{mark.line + 1 if mark else 1}: not valid JSON ({problem_of(error)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a DeepSpeed JSON is an object of settings; see ds_configs/")
    return values, tree


def _keys(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys of nested mappings."""
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{key}.")


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value != "auto"
    }


class _FromFile:
    """Mark of a key whose value in the recipe is the path of a DeepSpeed JSON, and in Python what it holds."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object) -> object:
            if value is None or isinstance(value, DeepSpeedFile):
                return value
            if not isinstance(value, str):
                raise ValueError("Input should be the path of a DeepSpeed JSON")
            return read_deepspeed_file(value)

        return core_schema.no_info_before_validator_function(read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, {"type": "null"}]}


FromFile = _FromFile()
