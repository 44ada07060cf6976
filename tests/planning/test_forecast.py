"""Time predicted from operators, traffic and what was measured: what bounds a step, how it grows, devices in files."""

import json
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from synthetic import BODY, Sampler, model

from ds_minimodel import ops
from ds_minimodel.bodies.body import shard
from ds_minimodel.bodies.modern import Gemma3Config, LlamaConfig, ModernBertConfig
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.costs import Work, step_flops
from ds_minimodel.engine.partition import Setup
from ds_minimodel.model.models import LanguageModel, to_tensors
from ds_minimodel.model.parameters import train_only
from ds_minimodel.objectives import OBJECTIVES
from ds_minimodel.parallel.group import Group
from ds_minimodel.planning.devices import GPUS, Device, Link, Measured, Overhead, named
from ds_minimodel.planning.forecast import flops_of, seconds_of_step
from ds_minimodel.planning.plans import Planner
from ds_minimodel.planning.tracing import ALL_GATHER, ALL_REDUCE, on_meta, trace

SETUP = Setup(1, "bf16", 64, 64, 1, 8, 1 << 34)
FREE = Link(bandwidth=1e20, latency=0.0)
MEASURED = Measured(
    rates={
        precision: {"product": [[8, 1e13], [128, 2e14]], "copy": [[1e6, 1e12], [1e8, 2e12]]}
        for precision in ("fp32", "bf16")
    },
    launch=8e-6,
    overheads={precision: [Overhead(step=2e-3, tensor=6e-5)] * 4 for precision in ("fp32", "bf16")},
    in_node=Link(bandwidth=2e11, latency=1e-5),
    between_nodes=Link(bandwidth=5e10, latency=2e-5),
)
DEVICE = Device(name="some GPU", type="cuda", memory=1 << 34, precision="bf16", capability=(8, 0), measured=MEASURED)


def batch(size):
    return to_tensors(Sampler.rows(0, size))


def with_measured(**changes):
    return DEVICE.model_copy(update={"measured": MEASURED.model_copy(update=changes)})


@pytest.fixture(scope="module")
def planner():
    return Planner(model("pretrain"), batch, "bf16", DEVICE)


def seconds(planner, device=DEVICE, **sizes):
    setup = SETUP._replace(**sizes)
    plan = planner.plan(setup)
    return seconds_of_step(planner.trace(setup).operators, plan.partition, plan.traffic, device)


def scaled(kind, by):
    """The device with one rate, or all links, or the launch, `by` times as fast."""
    if kind == "launches":
        return with_measured(launch=MEASURED.launch / by)
    if kind == "network":
        link = Link(bandwidth=MEASURED.in_node.bandwidth * by, latency=1e-5)
        return with_measured(in_node=link, between_nodes=link)
    name = {"products": "product", "memory": "copy"}[kind]
    return with_measured(
        rates={
            precision: {**kinds, name: [[size, rate * by] for size, rate in kinds[name]]}
            for precision, kinds in MEASURED.rates.items()
        }
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("step, depths", [("pretrain", (1, 3)), ("adapt", (3,))])
def test_traced_flops_are_those_that_costs_counts(device, step, depths):
    """The formula of what is executed, at the sizes of the traced batch: every product is seen, on every way."""
    module, one = model(step), {**batch(8), "depth": 3} if step == "adapt" else batch(8)
    traced = flops_of(trace(on_meta(module, torch.float32), one, True, device).operators)
    size, length = one["tokens"].shape
    work = Work(BODY, 64, length, one["read"].shape[1] / length, size)
    assert traced == pytest.approx(step_flops(step, work, depths).executed)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("step", ["pretrain", "adapt"])
@pytest.mark.parametrize(
    "body, objective",
    [
        (ModernBertConfig(num_layers=3, hidden_size=32, num_heads=4, ffn_size=40, window=4), "masked-lm"),
        (LlamaConfig(num_layers=3, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_size=40), "next-token"),
        (
            Gemma3Config(
                num_layers=3, hidden_size=32, num_heads=4, head_size=16, ffn_size=40, window=9, global_every=2
            ),
            "next-token",
        ),
    ],
)
def test_windows_and_shared_heads_are_counted_as_they_are_traced(body, objective, step, device):
    module = LanguageModel(body, 64, (3,), OBJECTIVES[objective])
    train_only(module, lambda name: step == "pretrain" or name.startswith("pack."))
    one = {"tokens": torch.zeros(4, 32, dtype=torch.int64), "sample_keys": torch.zeros(4, dtype=torch.int32)}
    num_read = 32 if body.causal else 4
    one |= {} if body.causal else {"read": torch.arange(4).expand(4, -1)}
    one["targets"] = torch.zeros(4, num_read, dtype=torch.int64)
    traced = flops_of(trace(on_meta(module, torch.float32), one, True, device).operators)
    assert traced == pytest.approx(step_flops(step, Work(body, 64, 32, num_read / 32, 4), (3,)).executed)


def test_the_compiled_loss_is_traced_in_the_devices_chunks():
    x, table = (torch.empty(rows, 8, device="meta", requires_grad=True) for rows in (700, 50))
    bias, targets = torch.empty(50, device="meta"), torch.empty(700, dtype=torch.int64, device="meta")

    class Loss(torch.nn.Module):
        def forward(self, _):
            return ops.linear_cross_entropy(x, table, bias, targets)

    for device, calls in (("cpu", 9), ("cuda", 3)):
        operators = trace(Loss(), {}, True, device).operators
        products = [(operator.flops, count) for operator, count in operators.items() if operator.kind == "product"]
        assert sum(flops * count for flops, count in products) == 3 * 2 * 700 * 8 * 50
        assert sum(count for _, count in products) == calls


@pytest.mark.parametrize("kind", ["products", "memory", "launches", "network"])
def test_a_low_rate_bounds_the_step_and_a_high_one_never_slows_it(planner, kind):
    slow = seconds(planner, scaled(kind, 1e-6), ranks=4)
    assert slow.bound == kind and slow.total > seconds(planner, ranks=4).total
    assert seconds(planner, scaled(kind, 10), ranks=16).total <= seconds(planner, ranks=16).total


def test_a_cpu_waits_for_what_a_gpus_host_runs_ahead_of(planner):
    ahead, waiting = (seconds(planner, DEVICE.model_copy(update={"type": kind})) for kind in ("cuda", "cpu"))
    assert waiting.total == pytest.approx(ahead.products + ahead.memory + ahead.launches + ahead.network)
    assert ahead.total < waiting.total


def test_ranks_that_share_a_machine_are_slower(planner):
    """As measured, in between interpolated, and beyond as their number grows."""
    device = with_measured(slowdown=[[1, 1], [4, 2.25]], in_node=FREE).model_copy(update={"shared": True})
    alone, *crowded = (seconds(planner, device, ranks=n, batch_size=64 * n).total for n in (1, 2, 4, 8))
    assert [total / alone for total in crowded] == pytest.approx([1.5, 2.25, 4.5], rel=0.01)


def test_a_faster_network_scales_better(planner):
    free = with_measured(in_node=FREE, between_nodes=FREE)
    strong = [seconds(planner, free, ranks=ranks, micro_batch_size=4).total for ranks in (2, 4, 8, 16)]
    assert strong == sorted(strong, reverse=True)

    def efficiency(bandwidth):
        device = with_measured(between_nodes=Link(bandwidth=bandwidth, latency=2e-5))
        first, last = (seconds(planner, device, ranks=ranks, batch_size=4 * ranks).total for ranks in (8, 64))
        return first / last

    assert 0 < efficiency(1e7) < efficiency(1e9) < efficiency(1e11) <= 1


def test_accumulation_reduces_as_often_as_its_stage_does(planner):
    def network(**sizes):
        return seconds(planner, ranks=4, **sizes).network

    assert network(micro_batch_size=4) == network(micro_batch_size=16)
    # the messages of control are as many
    assert network(micro_batch_size=4, zero_stage=2) > 1.5 * network(micro_batch_size=16, zero_stage=2)


def test_a_device_that_was_not_measured_has_a_lower_bound():
    """The products that costs.py counts, at the data sheet's peak."""
    device, one = GPUS["a100-80g"], batch(16)
    planner = Planner(model("pretrain"), batch, "bf16", device)
    least, parts = planner.seconds(planner.plan(SETUP._replace(micro_batch_size=16)))
    work = Work(BODY, 64, one["tokens"].shape[1], one["read"].shape[1] / 16, 64)
    assert least == pytest.approx(step_flops("pretrain", work, (1, 3)).executed / 312e12) and not parts


# --- Tensor parallelism ---


def test_what_the_ranks_of_a_replica_exchange_takes_the_network(monkeypatch):
    """As many bytes as a pass on the CPU hands to the collectives, which are only counted here."""
    parts, sent = model("pretrain"), Counter()
    shard(parts, Group(1, 2))
    planner = Planner(parts, batch, "fp32", DEVICE)
    setup = SETUP._replace(precision="fp32", batch_size=8, micro_batch_size=8, ranks=2, tensor_parallel=2)
    traced = planner.trace(setup).operators
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: sent.update({"reduce": x.nbytes}))
    monkeypatch.setattr(dist, "all_gather", lambda _, x, group: sent.update({"gather": x.nbytes}))
    parts(batch(8)).mean().backward()
    exchanged = {
        kind: sum(op.bytes * count for op, count in traced.items() if op.kind == kind)
        for kind in (ALL_REDUCE, ALL_GATHER)
    }
    assert exchanged == {ALL_REDUCE: sent["reduce"], ALL_GATHER: sent["gather"]} and all(exchanged.values())

    def network(device=DEVICE, **sizes):
        plan = planner.plan(setup._replace(**sizes))
        return seconds_of_step(traced, plan.partition, {}, device).network

    near = network()
    assert 0 < near < network(ranks_per_node=1)
    assert near < network(ranks=6, ranks_per_node=3, batch_size=24)  # the second replica is on two nodes
    assert network(with_measured(in_node=FREE)) == pytest.approx(0)


# --- Files ---


@pytest.mark.parametrize("device", [*GPUS.values(), DEVICE], ids=lambda device: device.name)
def test_a_device_is_read_as_it_was_written(tmp_path, device):
    write_json(tmp_path / "gpu.json", device.model_dump())
    assert named(str(tmp_path / "gpu.json")) == device and device.precision in (device.peaks or MEASURED.rates)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda value: value["measured"].pop("launch"), "measured.launch: Field required"),
        (lambda value: value["measured"].update(launch=-1), "measured.launch: Input should be greater than"),
        (lambda value: value["measured"]["rates"]["bf16"].update(copy=[[8, 1], [4, 1]]), "the sizes must rise"),
        (lambda value: value["measured"]["rates"]["bf16"].pop("copy"), "copy and product"),
        (lambda value: value["measured"]["rates"]["bf16"].update(copy=[[8, 5e-324]]), "greater than or equal to 1"),
        (lambda value: value.update(name="\x1b[2J"), "name: holds control characters"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, message):
    value = json.loads(DEVICE.model_dump_json())
    damage(value)
    write_json(tmp_path / "device.json", value)
    with pytest.raises(UserError, match="device.json") as refused:
        named(str(tmp_path / "device.json"))
    assert message in str(refused.value) and "calibrate" in str(refused.value)


def test_what_a_file_lacks_is_said(planner):
    without = with_measured(between_nodes=None)
    assert seconds(planner, without, ranks=8).network > 0
    with pytest.raises(UserError, match="no link between nodes"):
        seconds(planner, without, ranks=16)
    with pytest.raises(UserError, match="engine.precision fp16: some GPU has fp32, bf16 alone"):
        DEVICE.resolve("fp16")
