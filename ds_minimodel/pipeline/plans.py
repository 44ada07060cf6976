"""Memory, traffic and time of each step of a recipe on a given number of ranks; nothing is started.

Finetuning takes less memory than the pretraining of the same body at the same micro-batch, so of tasks only the time is
planned.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.engine.execution import fill_batch, replicas_of
from ds_minimodel.engine.planning import devices
from ds_minimodel.engine.planning.devices import Device, Figures
from ds_minimodel.engine.planning.forecast import Layout, Seconds, flops_of, seconds_of, seconds_of_step
from ds_minimodel.engine.planning.memory_and_traffic import Choice, PlannedParameter, Sizes, traffic_of_step
from ds_minimodel.engine.planning.operators import Operator
from ds_minimodel.engine.planning.planner import Plan, Planner, operators_of_batch, ranks_for_copy
from ds_minimodel.engine.planning.trace import PREFIX, TRAINABLE
from ds_minimodel.engine.zero.config import zero_memory
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.planned import PlannedStep, planned_batches, planned_steps, planned_tasks

Row = dict[str, Any]
HOUR = 3600
WORTH_IT = 0.8  # of the fewest ranks' tokens a second and rank: more ranks are recommended down to this


class Target(NamedTuple):
    """Where a recipe is planned to run. price: of an hour of one device, None where it is not asked for."""

    device: Device
    ranks_per_node: int
    price: float | None = None

    def layout(self, recipe: Recipe, world_size: int) -> Layout:
        return Layout(world_size, min(self.ranks_per_node, world_size), recipe.engine.tensor_parallel)

    def sizes(self, recipe: Recipe, step: PlannedStep, world_size: int) -> Sizes:
        """Sizes of a step of the recipe on `world_size` ranks."""
        engine = recipe.engine
        return Sizes(
            engine.zero_stage,
            self.device.resolve(engine.precision),
            step.section.batch_size,
            engine.micro_batch_size,
            replicas_of(world_size, engine.tensor_parallel),
            ranks_for_copy(min(self.ranks_per_node, world_size), engine.tensor_parallel),
            self.device.memory_of_rank(self.ranks_per_node),
            zero_memory(engine.deepspeed.given() if engine.deepspeed else {}),
        )


def target_of(device: str, world_size: int, ranks_per_node: int | None = None, price: float | None = None) -> Target:
    """The Target of a device's name or file; all ranks, up to 8, on a node where not given. UserError for another."""
    return Target(devices.named(device), ranks_per_node or min(8, world_size), price)


def figures_of(target: Target, option: str) -> Figures:
    """Figures of the device; UserError, which names the option that wants them, where it has none."""
    if target.device.figures is None:
        raise UserError(
            f"{option}: {target.device.name} has no figures; name a GPU, or measure this machine with "
            "`ds-minimodel calibrate FILE` and give --device FILE"
        )
    return target.device.figures


class Planned(NamedTuple):
    """A step of a system with its planner; steps of the same architecture, in which the same trains, share one."""

    step: PlannedStep
    planner: Planner
    of_phases: tuple[tuple[Planner, float], ...]  # and the share of its steps, where the depth changes


def plans(
    recipe: Recipe, world_size: int, device: str, ranks_per_node: int | None = None, price: float | None = None
) -> list[Row]:
    """Rows as JSON, one for each masked-LM step of each system of the recipe; arguments as of `target_of`.

    "time" is None where the device has no figures. UserError for ranks that do not divide a batch, or that
    engine.tensor_parallel does not divide.
    """
    target, rows = target_of(device, world_size, ranks_per_node, price), []
    check_deepspeed_file(recipe, replicas_of(world_size, recipe.engine.tensor_parallel))
    days = {(row["system"], row["step"]): row["v100_days"] for row in recipe_costs(recipe)}
    for planned in _planned(recipe, target):
        step, planner, _ = planned
        sizes = target.sizes(recipe, step, world_size)
        plan = planner.plan(sizes)
        rows.append(
            {
                "system": step.system,
                "step": step.name,
                "device": target.device.name,
                **{key: value for key, value in sizes._asdict().items() if key != "zero"},
                "world_size": world_size,
                "ranks_per_node": target.ranks_per_node,
                "tensor_parallel": recipe.engine.tensor_parallel,
                "micro_batch_size": sizes.micro,
                **plan.summary(),
                "smallest_zero_stage": planner.smallest_stage(sizes),
                "largest_micro_batch": planner.largest_micro_batch(sizes),
                "parts": [asdict(part) for part in plan.parts],
                "time": _time(recipe, planned, plan, target, world_size, days[step.system, step.name]),
            }
        )
    return rows


def _planned(recipe: Recipe, target: Target) -> Iterator[Planned]:
    precision = target.device.resolve(recipe.engine.precision)
    planners: dict[Any, Planner] = {}
    for step in planned_steps(recipe):

        def planner(depth: int | None, step: PlannedStep = step) -> Planner:
            key = step.name, step.module.body.config, depth
            if key not in planners:
                batches = planned_batches(recipe, replace(step, depth=depth))
                planners[key] = Planner(step.module, batches, precision, target.device.type, target.device.capability)
            return planners[key]

        yield Planned(step, planner(step.depth), tuple((planner(depth), share) for depth, share in step.phases))


def _time(
    recipe: Recipe, planned: Planned, plan: Plan, target: Target, world_size: int, v100_days: float
) -> Row | None:
    """What is foretold of a step: seconds by what takes them, rates, hours, cost, and what would be faster."""
    figures, layout = target.device.figures, target.layout(recipe, world_size)
    if figures is None:
        return None
    section, sizes = planned.step.section, plan.sizes
    seconds = planned.planner.seconds(plan, figures, layout)
    mean = sum(
        share * planner.seconds(planner.plan(sizes), figures, layout).total for planner, share in planned.of_phases
    )
    flops = sizes.accumulation * flops_of(planned.planner.operators(sizes))
    fastest = planned.planner.fastest(sizes, figures, layout)
    return {
        **_rates(seconds, section.batch_size * section.seq_length, flops, figures, sizes.precision),
        **_whole(mean * section.steps, world_size, target.price),
        "steps": section.steps,
        "v100_days": v100_days,
        "fastest": fastest
        and {
            "zero_stage": fastest[0].sizes.zero_stage,
            "micro_batch_size": fastest[0].sizes.micro,
            "seconds": fastest[1].total,
        },
    }


def _rates(seconds: Seconds, tokens: float, flops: float, figures: Figures, precision: str) -> Row:
    """flops: of one rank."""
    return {
        **seconds.summary(),
        "tokens_per_second": tokens / seconds.total,
        "share_of_peak": flops / seconds.total / figures.peak(precision),
    }


def _whole(seconds: float, world_size: int, price: float | None) -> Row:
    hours = seconds / HOUR
    return {
        "hours": hours,
        "device_days": hours * world_size / 24,
        "cost": None if price is None else hours * world_size * price,
    }


# --- Tasks ---


def task_times(recipe: Recipe, world_size: int, target: Target, length: int, examples: int | None) -> list[Row]:
    """Rows as JSON: finetuning and evaluation of each body on each task; [] where the device has no figures.

    length: tokens of an example, without padding. examples: of a training file; hours are None where it is not given.
    In evaluation every replica scores packs of its own.
    """
    figures, layout = target.device.figures, target.layout(recipe, world_size)
    if figures is None:
        return []
    precision, rows = target.device.resolve(recipe.engine.precision), []
    replicas = replicas_of(world_size, recipe.engine.tensor_parallel)
    traced: dict[Any, Mapping[Operator, int]] = {}
    for task in planned_tasks(recipe, length, replicas):
        module = task.module
        key = type(module), module.body.config, task.trains, task.batch["tokens"].shape
        if key not in traced:
            traced[key] = operators_of_batch(
                module, task.batch, precision, target.device.type, task.trains, target.device.capability
            )
        operators = traced[key]
        micro, tokens = task.batch["tokens"].shape
        if task.trains:
            slots, _ = fill_batch(recipe.finetune.of(task.task, "batch_size"), micro, replicas)
            sizes = Sizes(recipe.engine.zero_stage, precision, slots, micro, replicas, 1, 0)
            parameters = [
                PlannedParameter(name, TRAINABLE if parameter.requires_grad else PREFIX, parameter.numel())
                for name, parameter in module.named_parameters()
            ]
            wire = traffic_of_step(sizes, parameters, Choice())
            seconds = seconds_of_step(operators, sizes, parameters, Choice(), wire, figures, layout)
            samples, passes = recipe.finetune.of(task.task, "batch_size"), sizes.accumulation
        else:
            seconds = seconds_of(operators, figures, layout)
            samples, passes = micro * replicas, 1
        hours: Row = {"hours": None, "device_days": None, "cost": None}
        if task.trains and examples is not None:
            updates = -(-examples // samples) * recipe.finetune.of(task.task, "epochs") * recipe.finetune.seeds
            hours = _whole(updates * seconds.total, world_size, target.price)
        rows.append(
            {
                "system": task.system,
                "step": task.name,
                "task": task.task,
                "example_tokens": task.length,
                "micro_batch_size": micro,
                "time": {
                    **_rates(seconds, samples * tokens, passes * flops_of(operators), figures, precision),
                    **hours,
                },
            }
        )
    return rows


# --- Scaling ---


def scaling(recipe: Recipe, world_sizes: Iterable[int], target: Target) -> list[Row]:
    """Rows as JSON, for each step and number of ranks: weak and strong scaling with their efficiency.

    Strong: the recipe's batch is divided among the ranks, and micro-batches shrink with it. Weak: each rank keeps its
    share of the batch at the fewest ranks. Efficiency is tokens a second and rank, as a share of that at the fewest
    ranks. None where the ranks do not divide the batch. UserError where the device has no figures.
    """
    figures_of(target, "--scale")
    counts = sorted(world_sizes)
    rows = []
    for planned in _planned(recipe, target):
        batch_size, fewest = planned.step.section.batch_size, counts[0]
        for kind in ("weak", "strong"):
            first = None
            for count in counts:
                whole = batch_size * count // fewest if kind == "weak" else batch_size
                time = _scaled(recipe, planned, target, count, whole)
                if first is None and time:
                    first = time["tokens_per_second"] / count
                efficiency = time and first and time["tokens_per_second"] / count / first
                rows.append(
                    {
                        "system": planned.step.system,
                        "step": planned.step.name,
                        "scaling": kind,
                        "world_size": count,
                        "batch_size": whole,
                        "time": time,
                        "efficiency": efficiency,
                    }
                )
    return rows


def _scaled(recipe: Recipe, planned: Planned, target: Target, world_size: int, batch_size: int) -> Row | None:
    figures, layout = figures_of(target, "--scale"), target.layout(recipe, world_size)
    sizes = target.sizes(recipe, planned.step, world_size)._replace(batch_size=batch_size)
    per_rank = batch_size // sizes.world_size
    if batch_size % sizes.world_size or per_rank % min(sizes.micro_batch_size, per_rank or 1) or not per_rank:
        return None
    seconds = planned.planner.seconds(planned.planner.plan(sizes), figures, layout)
    flops = sizes.accumulation * flops_of(planned.planner.operators(sizes))
    section = planned.step.section
    return _rates(seconds, batch_size * section.seq_length, flops, figures, sizes.precision) | _whole(
        seconds.total * section.steps * section.batch_size / batch_size, world_size, target.price
    )


def recommended_ranks(rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """{(system, step): the most ranks whose strong scaling is at least WORTH_IT}."""
    return {
        (row["system"], row["step"]): row["world_size"]
        for row in rows  # in rising order
        if row["scaling"] == "strong" and row["efficiency"] and row["efficiency"] >= WORTH_IT
    }
