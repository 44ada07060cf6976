"""DeepSpeed's JSON that a recipe may name (`engine.deepspeed`): the keys that are taken.

The recipe owns batches, precision, ZeRO stage, optimizer and schedule: such keys may stand in the file where they agree
(engine/zero/config.py compares them). Of the others declared here some hold as the file has them, and some may only say
what holds without them. A key that is not declared is refused: it would change what the recipe, the partition of a run
or the checkpoints decide. "auto", which other libraries fill in, is as good as absent.
"""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict, ValidationError
from pydantic_core import CoreSchema, core_schema

from ds_minimodel.common.errors import UserError, reason_of
from ds_minimodel.common.sections import DECIDES_NOTHING, Decides, Few, Section, UpTo
from ds_minimodel.recipe.yaml12 import MOST_BYTES, line_of, problem_of, read_yaml, similar_key

MOST_FAULTS = 20  # in one message
# The recipe's own key decides and is recorded.
OWNED = Decides(recorded=False, compared=False)
Owned = Annotated[Any, OWNED]
Elements = Annotated[int, Strict(False), Field(gt=0), UpTo(10**12)]  # DeepSpeed's pages write 5e8
Scale = Annotated[int, Field(ge=0), UpTo(10**9)]


@dataclass(frozen=True, eq=False)  # 0 equals False, and typing keeps one of what is equal
class _Inert:
    """Mark of a key that changes nothing: it may have one of these values, which hold without it or are not used."""

    values: tuple[Any, ...]

    def check(self, value: Any) -> Any:
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values):
            raise ValueError(f"Input should be {' or '.join(map(json.dumps, self.values))}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)


class _SwitchedOff(_Inert):
    """Mark of a section that may only be switched off."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("enabled", any(value.values())):
            raise ValueError('Input should have "enabled": false')
        return value


Yes = Annotated[Any, _Inert((True,)), DECIDES_NOTHING]
No = Annotated[Any, _Inert((False,)), DECIDES_NOTHING]
YesOrNo = Annotated[Any, _Inert((True, False)), DECIDES_NOTHING]
Zero = Annotated[Any, _Inert((0,)), DECIDES_NOTHING]
One = Annotated[Any, _Inert((1,)), DECIDES_NOTHING]
Billion = Annotated[Any, _Inert((10**9,)), DECIDES_NOTHING]
SwitchedOff = Annotated[Any, _SwitchedOff(()), DECIDES_NOTHING]


class Fp16(Section):
    """How the loss scale moves decides which steps are skipped, and so the result."""

    enabled: Owned = None
    initial_scale_power: Annotated[int, Field(ge=0), UpTo(31)] | None = None  # 12 where not given
    loss_scale_window: Scale | None = None
    hysteresis: Scale | None = None
    consecutive_hysteresis: bool | None = None
    min_loss_scale: Scale | None = None
    loss_scale: Zero = 0  # a scale that moves, whose state checkpoints hold
    auto_cast: No = False
    fp16_master_weights_and_grads: No = False


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
    allgather_partitions: Yes = True
    reduce_scatter: Yes = True
    contiguous_gradients: Yes = True
    ignore_unused_parameters: Yes = True
    load_from_fp32_weights: Yes = True
    cpu_offload: No = False
    cpu_offload_param: No = False
    round_robin_gradients: No = False
    zero_quantized_weights: No = False
    zero_quantized_gradients: No = False
    zero_quantized_nontrainable_weights: No = False
    stage3_max_live_parameters: Billion = 10**9
    stage3_max_reuse_distance: Billion = 10**9
    sub_group_size: Billion = 10**9
    stage3_param_persistence_threshold: Zero = 0
    # Of models that DeepSpeed saves; ours are exported from their artifacts.
    stage3_gather_16bit_weights_on_model_save: YesOrNo = False
    stage3_gather_fp16_weights_on_model_save: YesOrNo = False


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
    output_file: None = None


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
    tensorboard: SwitchedOff = None
    wandb: SwitchedOff = None
    comet: SwitchedOff = None
    csv_monitor: SwitchedOff = None
    amp: SwitchedOff = None
    torch_autocast: SwitchedOff = None
    activation_checkpointing: SwitchedOff = None
    autotuning: SwitchedOff = None
    curriculum_learning: SwitchedOff = None
    data_efficiency: SwitchedOff = None
    elasticity: SwitchedOff = None
    progressive_layer_drop: SwitchedOff = None
    gradient_predivide_factor: One = 1
    prescale_gradients: No = False
    sparse_gradients: No = False
    disable_allgather: No = False
    dataloader_drop_last: No = False
    dump_state: No = False
    zero_allow_untested_optimizer: YesOrNo = False  # torch's AdamW is one that DeepSpeed has tested
    zero_force_ds_cpu_optimizer: No = False

    def recorded(self) -> dict[str, Any]:
        """The settings that decide results, where the file has any; {} where it has none."""
        fp16 = self.fp16.recorded() if self.fp16 else {}
        given = {key: value for key, value in fp16.items() if value is not None}
        return {"fp16": given} if given else {}

    def given(self) -> dict[str, Any]:
        """The keys of the file but those that change nothing, as JSON."""
        return _given(self)


def _given(section: Section) -> dict[str, Any]:
    found = {}
    for key, field in type(section).model_fields.items():
        if key in section.model_fields_set and not any(isinstance(mark, _Inert) for mark in field.metadata):
            value = getattr(section, key)
            found[key] = _given(value) if isinstance(value, Section) else value
    return found


def read_deepspeed_file(path: str | Path) -> DeepSpeedFile:
    """The settings in a JSON file; UserError, with each key that is not taken and its line, for one that is not."""
    values, tree = _parsed(path)
    try:
        return DeepSpeedFile.model_validate(_without_auto(values))
    except ValidationError as error:
        faults = [*_faults(error, tree)]
        left = f" and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        raise UserError(
            f"{path}: not taken: {', '.join(faults[:MOST_FAULTS])}{left}; the recipe, the partition and the "
            "checkpoints decide what is not listed in docs/launch.md: remove these keys"
        ) from None


def _faults(error: ValidationError, tree: yaml.Node | None) -> Iterator[str]:
    """Each key that is refused, with its line, and why where another value of it is taken or it is misspelt."""
    for fault in error.errors(include_url=False, include_input=False):
        where = [str(part) for part in fault["loc"]]
        reason = f": {reason_of(fault)}"
        if fault["type"] == "extra_forbidden":
            similar = similar_key(where, DeepSpeedFile)
            reason = f"; did you mean {similar}?" if similar else ""
        yield f"{'.'.join(where)} (line {line_of(tree, where)}{reason})"


def _parsed(path: str | Path) -> tuple[dict[str, Any], yaml.Node | None]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"engine.deepspeed: {path}: a folder, a pipe or a device; name a DeepSpeed JSON")
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UserError(f"engine.deepspeed: {path}: {error.strerror}; name a DeepSpeed JSON, see ds_configs/") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; convert the file") from None
    if len(data) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES:,} bytes; that is no DeepSpeed JSON")
    try:
        values, tree = read_yaml(text)  # of which JSON is a part; it says where, and refuses a key that is there twice
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(f"{path}:{mark.line + 1 if mark else 1}: not valid JSON ({problem_of(error)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: a DeepSpeed JSON is an object of settings; see ds_configs/")
    return values, tree


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
