"""Plain DeepSpeed still does what training/zero works around. A test that fails says which workaround may go.

The quirks are rows of docs/deepspeed.md, one test each. No test here uses training/zero.
"""

import ast
import contextlib
import warnings
from pathlib import Path
from unittest import mock

import deepspeed
import pytest
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.comm.torch import build_shm_op
from deepspeed.ops.op_builder.builder import OpBuilder
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.utils import ZeRORuntimeException
from deepspeed.utils import safe_get_full_fp32_param
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("world", "fp16_on_cpu", "linear_after_each")
ROOT = Path(__file__).parents[2]
LINEAR = functional.linear


def rows():
    """{name of a test: cells of its row} of the table in docs/deepspeed.md."""
    lines = (ROOT / "docs/deepspeed.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return {row[-1].strip("` "): row for row in cells if row[-1].strip("` ").startswith("test_")}


@pytest.fixture
def still(request):
    """still(condition): fails, naming the quirk of this test and what may be removed, where it no longer holds."""

    def check(is_there):
        quirk, workaround, _ = rows()[request.node.originalname]
        assert is_there, f"DeepSpeed {deepspeed.__version__} is rid of it: {quirk!r}. May be removed: {workaround!r}"

    return check


@pytest.fixture
def linear_after_each():
    yield
    functional.linear = LINEAR


def build(stage, precision="bf16", module=None, optimizer=None, config=(), **zero):
    """Plain DeepSpeed around a linear map of 20 parameters."""
    module = module or linear()
    optimizer = optimizer or torch.optim.AdamW(filter(lambda p: p.requires_grad, module.parameters()), lr=1.0)
    zero = {"stage": stage, **zero}
    whole = {"train_micro_batch_size_per_gpu": 1, "steps_per_print": 10**9, "zero_optimization": zero, **dict(config)}
    if precision != "fp32":
        whole[precision] = {"enabled": True, **({"initial_scale_power": 12} if precision == "fp16" else {})}
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, dist_init_required=False, config=whole)
    return engine


def refuses(error, action, *arguments, **options):
    """Whether `action` fails with this error."""
    try:
        action(*arguments, **options)
    except error:
        return True
    return False


def linear():
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def half_frozen():
    module = nn.Sequential(linear(), linear())
    module[0].requires_grad_(False)
    return module


def loss_of(engine):
    dtype = next(engine.module.parameters()).dtype
    return engine(torch.ones(1, 4, dtype=dtype)).float().sum()


def step(engine):
    engine.backward(loss_of(engine))
    engine.step()
    return engine


# --- the table


def test_each_quirk_has_its_test_and_each_test_its_quirk():
    tree = ast.parse(Path(__file__).read_text())
    takes = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(rows()) == {name for name, arguments in takes.items() if "still" in arguments}
    assert all(len(row) == 3 for row in rows().values())


# --- a process starts


def test_a_shared_memory_operator_is_compiled(still):
    name = get_accelerator().create_op_builder("ShareMemCommBuilder").NAME
    known = {name: get_accelerator().create_op_builder("ShareMemCommBuilder").is_compatible(verbose=False)}
    with mock.patch.object(OpBuilder, "load") as load, mock.patch.object(deepspeed.ops, "__compatible_ops__", known):
        build_shm_op()
    still(load.called)


def test_torch_warns_of_collectives_at_every_step(still):
    engine = build(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step(engine)
    still(any(issubclass(warning.category, FutureWarning) for warning in caught))


def test_an_optimizer_of_the_configuration_is_compiled(still):
    module, config = linear(), {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}}
    options = {"model": module, "model_parameters": module.parameters(), "dist_init_required": False, "config": config}
    with mock.patch.object(OpBuilder, "load", side_effect=RuntimeError("compiling")):
        still(refuses(RuntimeError, deepspeed.initialize, **options))


# --- an engine is built


def test_stage_0_takes_a_step_at_its_start(still):
    engine = build(0, "bf16")
    states = getattr(engine.optimizer, "optimizer", engine.optimizer).state.values()
    still([float(state["step"]) for state in states] == [1.0, 1.0])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_masters_are_made_of_rounded_parameters(still, stage):
    module = linear()
    original = module.weight.detach().clone()
    build(stage, "bf16", module)
    still(torch.equal(safe_get_full_fp32_param(module.weight), original.bfloat16().float()))


def test_masters_of_stage_0_are_not_shown(still):
    engine = build(0, "bf16")
    still(safe_get_full_fp32_param(engine.module.weight) is None)


def test_stage_3_hides_its_masters_from_the_optimizer(still):
    optimizer = build(3, "bf16").optimizer
    held = sum(tensor.numel() for group in optimizer.optimizer.param_groups for tensor in group["params"])
    still(held == 0 and sum(tensor.numel() for tensor in optimizer.fp32_partitioned_groups_flat) == 20)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_group_of_frozen_parameters_alone_fails(still, stage):
    module = half_frozen()
    optimizer = torch.optim.AdamW([{"params": list(part.parameters())} for part in module])
    still(refuses(IndexError, build, stage, "bf16", module, optimizer))


SUMS_IN_FP32 = {"gradient_accumulation_steps": 2, "data_types": {"grad_accum_dtype": "fp32"}}


def test_stage_0_does_not_add_up_in_fp32(still):
    still(refuses(NotImplementedError, build, 0, config=SUMS_IN_FP32))


def test_stage_3_partitions_frozen_parameters(still):
    module = half_frozen()
    build(3, "bf16", module, stage3_param_persistence_threshold=0)
    still(module[0].weight.numel() == 0)


def test_stage_3_does_not_cast_buffers(still):
    module = linear()
    module.register_buffer("scale", torch.ones(3))
    build(3, "bf16", module)
    still(module.scale.dtype == torch.float32 and module.weight.dtype == torch.bfloat16)


def test_stage_3_keeps_small_parameters_whole(still):
    still(build(3).module.weight.ds_persist)


def test_stage_3_leaves_its_linear_function_behind(still):
    build(3).destroy()
    still(functional.linear is not LINEAR)


def test_the_linear_function_of_stage_3_keeps_the_inputs_of_frozen_weights(still):
    build(3)
    frozen, x, saved = torch.ones(5, 4), torch.ones(2, 4, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.shape), lambda tensor: tensor):
        functional.linear(x, frozen)
    still(x.shape in saved)


def test_stage_3_keeps_a_billion_elements_gathered(still):
    """Not a fault, but the plan of memory rests on it: KEPT_LIVE in training/zero/config.py."""
    still(DeepSpeedZeroConfig().max_live_parameters == 10**9)


# --- a step is taken


def test_fp32_at_stage_0_takes_steps_that_are_not_finite(still):
    engine = build(0, "fp32")
    engine.backward(loss_of(engine) * torch.inf)
    engine.step()
    still(not engine.skipped_steps and not engine.module.bias.isfinite().all())


def test_the_norm_cannot_be_left_out_beside_fp32_sums(still):
    still(refuses(ValueError, build, 1, config=SUMS_IN_FP32, compute_grad_norm=False))


def test_fp16_at_stage_0_does_not_scale_the_loss(still):
    module = linear()
    before = module.bias.detach().half().float()
    step(build(0, "fp16", module, torch.optim.SGD(module.parameters(), lr=1.0)))
    moved = (module.bias.float() - before).abs().max().item()
    still(moved < 2 / 4096)  # the gradient is 1, and the rate


def test_backward_divides_the_loss_by_the_micro_batches(still):
    engine = build(1, "fp32", config={"gradient_accumulation_steps": 4})
    loss = loss_of(engine)
    still(engine.backward(loss).item() == pytest.approx(loss.item() / 4))


class SecondOfAReplica:
    """DeepSpeed's `mpu` on the second rank of a replica, whose first is not here."""

    get_model_parallel_rank = get_tensor_model_parallel_rank = lambda self: 1
    get_model_parallel_group = get_tensor_model_parallel_group = lambda self: None


def test_clipping_at_stage_0_does_not_know_parts_of_a_replica(still):
    """All parameters are parts, so all gradients of this rank count; none does."""
    engine = build(0, "bf16", config={"gradient_clipping": 1.0})
    for parameter in engine.module.parameters():
        parameter.tensor_model_parallel = True
    engine.optimizer.mpu = SecondOfAReplica()
    step(engine)
    still(float(engine.get_global_grad_norm()) == 0)


# --- settings of a file


@pytest.fixture
def quiet_comms():
    yield
    deepspeed.comm.reset_log()
    deepspeed.comm.configure(enabled=False)


def test_the_comms_logger_is_on_where_it_is_off(still, quiet_comms):
    build(1, config={"comms_logger": {"enabled": False}})
    still(deepspeed.comm.comm.comms_logger.enabled)


def test_the_comms_logger_stays_on(still, quiet_comms, capsys):
    step(build(1, config={"comms_logger": {"enabled": True}})).destroy()
    counted = deepspeed.comm.get_comm_operation_count()
    step(build(1))
    still(deepspeed.comm.get_comm_operation_count() > counted > 0 and "all_reduce" not in capsys.readouterr().out)


OFFLOAD = {"offload_optimizer": {"device": "cpu"}}


def test_offloading_refuses_an_optimizer_that_is_handed_over(still):
    still(refuses(ZeRORuntimeException, build, 2, **OFFLOAD))


def test_offloading_refuses_to_leave_the_norm_out(still):
    config = {"zero_force_ds_cpu_optimizer": False}
    still(refuses(ValueError, build, 2, config=config, compute_grad_norm=False, **OFFLOAD))


# --- checkpoints


def saved(folder, stage, **options):
    step(build(stage)).save_checkpoint(folder, tag="tag", **options)
    functional.linear = LINEAR
    return folder


@pytest.mark.parametrize("before, after", [(0, 1), (1, 0), (1, 3), (3, 1), (2, 3)])
def test_another_stage_cannot_go_on(still, tmp_path, before, after):
    engine, loaded = build(after), [None]
    saved(tmp_path, before)
    with contextlib.suppress(FileNotFoundError, TypeError, AssertionError):
        loaded = engine.load_checkpoint(tmp_path)
    still(loaded[0] is None)
