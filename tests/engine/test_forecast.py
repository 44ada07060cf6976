"""Time foretold from operators, traffic and a device's figures: what bounds a step, how it scales, figures in files."""

import json
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from synthetic import BODY, Sampler, model

from ds_minimodel import ops
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import write_json
from ds_minimodel.costs import Work, step_flops
from ds_minimodel.engine.planning import calibration
from ds_minimodel.engine.planning.calibration import CLOCKS, TINY, calibrate
from ds_minimodel.engine.planning.devices import GPUS, Crowd, Device, Link, named, rate_at
from ds_minimodel.engine.planning.forecast import Layout, flops_of, seconds_of
from ds_minimodel.engine.planning.memory_and_traffic import Sizes
from ds_minimodel.engine.planning.operators import ALL_GATHER, ALL_REDUCE, operators_of
from ds_minimodel.engine.planning.planner import Planner
from ds_minimodel.engine.planning.trace import on_meta
from ds_minimodel.model.heads import to_tensors
from ds_minimodel.model.tensor_parallel import shard
from ds_minimodel.parallel.group import Group

SIZES = Sizes(1, "bf16", 64, 64, 1, 1, 1 << 34)
FIGURES = GPUS["a100-80g"].figures
FREE = Link(bandwidth=1e20, latency=0.0)


def batch(size):
    return to_tensors(Sampler.rows(0, size))


@pytest.fixture(scope="module")
def planner():
    return Planner(model("pretrain"), lambda micro: [batch(micro)], "bf16", "cuda")


def seconds(planner, figures=FIGURES, ranks=1, ranks_per_node=8, **sizes):
    plan = planner.plan(SIZES._replace(world_size=ranks, **sizes))
    return planner.seconds(plan, figures, Layout(ranks, min(ranks, ranks_per_node)))


def scaled(figures, kind, by):
    """Figures with one rate, or all links, or the launch, `by` times as fast."""
    if kind == "launches":
        return figures.model_copy(update={"launch": figures.launch / by})
    if kind == "network":
        slower = figures.in_node.model_copy(update={"bandwidth": figures.in_node.bandwidth * by})
        return figures.model_copy(update={"in_node": slower, "between_nodes": slower})
    name = {"products": "product", "memory": "copy"}[kind]
    rates = {
        precision: {**kinds, name: [[size, rate * by] for size, rate in kinds[name]]}
        for precision, kinds in figures.rates.items()
    }
    return figures.model_copy(update={"rates": rates})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("step, depths", [("pretrain", (1, 3)), ("adapt", (3,))])
def test_traced_flops_are_those_that_costs_counts(device, step, depths):
    """The formula of what is executed, at the sizes of the traced batch: every product is seen, on every way."""
    module, one = model(step), {**batch(8), "depth": 3} if step == "adapt" else batch(8)
    traced = flops_of(operators_of(on_meta(module, torch.float32), one, device))
    size, length = one["tokens"].shape
    work = Work(BODY.hidden_size, BODY.ffn_size, 64, length, one["read"].shape[1] / length, size)
    assert traced == pytest.approx(step_flops(step, work, depths).executed)


def test_the_compiled_loss_is_traced_in_the_devices_chunks():
    x, table = (torch.empty(rows, 8, device="meta", requires_grad=True) for rows in (700, 50))
    bias, targets = torch.empty(50, device="meta"), torch.empty(700, dtype=torch.int64, device="meta")

    class Loss(torch.nn.Module):
        def forward(self, _):
            return ops.linear_cross_entropy(x, table, bias, targets)

    products = {
        device: [(op.flops, count) for op, count in operators_of(Loss(), {}, device).items() if op.kind == "product"]
        for device in ("cpu", "cuda")
    }
    assert sum(flops * count for flops, count in products["cpu"]) == 3 * 2 * 700 * 8 * 50
    assert sum(flops * count for flops, count in products["cuda"]) == 3 * 2 * 700 * 8 * 50
    assert sum(count for _, count in products["cpu"]) == 9 and sum(count for _, count in products["cuda"]) == 3


@pytest.mark.parametrize("kind", ["products", "memory", "launches", "network"])
def test_a_tiny_figure_bounds_the_step(planner, kind):
    slow = seconds(planner, scaled(FIGURES, kind, 1e-6), ranks=4)
    assert slow.bound == kind and slow.total > seconds(planner, ranks=4).total


@pytest.mark.parametrize("kind", ["products", "memory", "launches", "network"])
def test_nothing_gets_slower_by_a_faster_device(planner, kind):
    assert seconds(planner, scaled(FIGURES, kind, 10), ranks=16).total <= seconds(planner, ranks=16).total


def test_a_cpu_waits_for_what_a_gpus_host_runs_ahead_of(planner):
    ahead, waiting = (seconds(planner, FIGURES.model_copy(update={"runs_ahead": ahead})) for ahead in (True, False))
    assert waiting.total == pytest.approx(ahead.products + ahead.memory + ahead.launches + ahead.network)
    assert ahead.total < waiting.total


def test_ranks_that_share_a_machine_are_slower(planner):
    """As measured, in between interpolated, and beyond as their number grows."""
    crowds = [Crowd(ranks=1, slowdown=1), Crowd(ranks=4, slowdown=2.25, link=FREE)]
    figures = FIGURES.model_copy(update={"sharing": crowds})
    alone, *crowded = (seconds(planner, figures, ranks=n, batch_size=64 * n).total for n in (1, 2, 4, 8))
    assert [total / alone for total in crowded] == pytest.approx([1.5, 2.25, 4.5], rel=0.01)


def test_more_ranks_are_never_slower_where_the_network_is_free(planner):
    figures = FIGURES.model_copy(update={"in_node": FREE, "between_nodes": FREE})
    strong = [seconds(planner, figures, ranks=ranks, micro_batch_size=4).total for ranks in (2, 4, 8, 16)]
    assert strong == sorted(strong, reverse=True)


def test_a_slower_network_scales_worse(planner):
    def efficiency(bandwidth):
        between = FIGURES.between_nodes.model_copy(update={"bandwidth": bandwidth})
        figures = FIGURES.model_copy(update={"between_nodes": between})
        first, last = (seconds(planner, figures, ranks=ranks, batch_size=4 * ranks).total for ranks in (8, 64))
        return first / last

    assert 0 < efficiency(1e7) < efficiency(1e9) < efficiency(1e11) <= 1


def test_accumulation_reduces_as_often_as_its_stage_does(planner):
    once, often = (seconds(planner, ranks=4, micro_batch_size=size, zero_stage=2).network for size in (16, 4))
    assert (
        seconds(planner, ranks=4, micro_batch_size=4).network == seconds(planner, ranks=4, micro_batch_size=16).network
    )
    assert often > 1.5 * once  # the messages of control are as many


def test_the_fastest_plan_fits_and_is_no_slower(planner):
    sizes = SIZES._replace(micro_batch_size=2, zero_stage=0)
    plan, found = planner.fastest(sizes, FIGURES, Layout(1, 1))
    assert plan.fits and found.total <= seconds(planner, micro_batch_size=2, zero_stage=0).total
    assert planner.fastest(sizes._replace(device_memory=1), FIGURES, Layout(1, 1)) is None


def test_rates_between_sizes():
    curve = [[10.0, 1.0], [1000.0, 100.0]]
    assert [rate_at(curve, size) for size in (1, 10, 1000, 1e6)] == [1, 1, 100, 100]
    assert rate_at(curve, 100) == pytest.approx(10)


# --- Tensor parallelism ---


def test_what_the_ranks_of_a_replica_exchange_takes_the_network(monkeypatch):
    """As many bytes as a pass on the CPU hands to the collectives, which are only counted here."""
    parts, sent = model("pretrain"), Counter()
    shard(parts, Group(1, 2))
    traced = operators_of(on_meta(parts, torch.float32), batch(8), "cpu")
    monkeypatch.setattr(dist, "all_reduce", lambda x, group: sent.update({"reduce": x.nbytes}))
    monkeypatch.setattr(dist, "all_gather", lambda _, x, group: sent.update({"gather": x.nbytes}))
    parts(batch(8)).mean().backward()
    exchanged = {
        kind: sum(op.bytes * count for op, count in traced.items() if op.kind == kind)
        for kind in (ALL_REDUCE, ALL_GATHER)
    }
    assert exchanged == {ALL_REDUCE: sent["reduce"], ALL_GATHER: sent["gather"]} and all(exchanged.values())

    near = seconds_of(traced, FIGURES, Layout(2, 8, 2)).network
    assert 0 < near < seconds_of(traced, FIGURES, Layout(2, 1, 2)).network
    assert near < seconds_of(traced, FIGURES, Layout(6, 3, 2)).network  # the second replica is on two nodes
    figures = FIGURES.model_copy(update={"in_node": FREE})
    assert seconds_of(traced, figures, Layout(2, 8, 2)).network == pytest.approx(0)


# --- Files of figures ---


def test_a_measured_machine_is_read_as_it_was_written(world, tmp_path, monkeypatch):
    """With a sample so small that it takes a second; and a step is foretold from it."""
    monkeypatch.setattr(calibration, "SAMPLES", {"cpu": (TINY,)})
    for name, less in {
        "PASSES": 1,
        "STEPS": 1,
        "LINK_BYTES": 1 << 16,
        "LARGE": (2, 1 << 10),
        "MEMORY_OF_A_RANK": 1 << 50,
        "TOGETHER": 2,
    }.items():
        monkeypatch.setattr(calibration, name, less)
    measured = calibrate(CLOCKS["cpu"])
    write_json(tmp_path / "here.json", measured.model_dump())
    device = named(str(tmp_path / "here.json"))
    assert device == measured and device.figures.in_node.bandwidth > 0
    assert device.figures.slowdown(1) == 1 <= device.figures.slowdown(2) < device.figures.slowdown(8)
    assert {"product", "copy", "attention", "attention with dropout", "update at ZeRO 3"} <= device.figures.rates[
        "fp32"
    ].keys()
    planner = Planner(model("pretrain"), lambda micro: [batch(micro)], "fp32", "cpu")
    plan = planner.plan(SIZES._replace(precision="fp32"))
    assert 0 < planner.seconds(plan, device.figures, Layout(1, 1)).total < 10


@pytest.mark.parametrize("device", GPUS.values(), ids=GPUS)
def test_a_gpus_figures_are_read_as_they_were_written(tmp_path, device):
    write_json(tmp_path / "gpu.json", device.model_dump())
    assert named(str(tmp_path / "gpu.json")) == device


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda value: value["figures"].pop("launch"), "figures.launch: Field required"),
        (lambda value: value["figures"].update(launch=-1), "figures.launch: Input should be greater than"),
        (lambda value: value["figures"]["rates"]["bf16"].update(copy=[[8, 1], [4, 1]]), "the sizes must rise"),
        (lambda value: value["figures"]["rates"]["bf16"].update(copy=[]), "at least 1 item"),
        (lambda value: value["figures"]["rates"]["bf16"].pop("copy"), "copy and product"),
        (lambda value: value["figures"].update(sharing=[{"ranks": 2, "slowdown": 1.5}]), "begins with one rank"),
        (lambda value: value["figures"]["rates"]["bf16"].update(copy=[[8, 5e-324]]), "greater than or equal to 1"),
        (lambda value: value.update(name="\x1b[2J"), "name: holds control characters"),
        (lambda value: value.update(memory="80 GB"), "memory: Input should be a valid integer"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, message):
    value = json.loads(GPUS["a100-80g"].model_dump_json())
    damage(value)
    write_json(tmp_path / "device.json", value)
    with pytest.raises(UserError, match="device.json") as refused:
        named(str(tmp_path / "device.json"))
    assert message in str(refused.value) and "calibrate" in str(refused.value)


def test_what_figures_lack_is_said(planner):
    without = FIGURES.model_copy(update={"between_nodes": None})
    assert seconds(planner, without, ranks=8).network > 0
    with pytest.raises(UserError, match="no link between nodes"):
        seconds(planner, without, ranks=16)
    with pytest.raises(UserError, match="fp16"):
        FIGURES.model_copy(update={"rates": {"fp32": FIGURES.rates["fp32"]}}).kinds("fp16")


@pytest.mark.parametrize("device", GPUS.values(), ids=GPUS)
def test_a_declared_device_names_its_sources(device):
    assert device.source.startswith("https://") and Device(**device.model_dump()) == device
    assert device.precision in device.figures.rates
