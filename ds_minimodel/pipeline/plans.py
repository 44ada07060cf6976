"""Memory and traffic of each masked-LM step of a recipe on a given number of ranks; nothing is started.

Finetuning takes less than the pretraining of the same body at the same micro-batch.
"""

from dataclasses import asdict
from typing import Any

from ds_minimodel.engine.execution import replicas_of
from ds_minimodel.engine.planning import devices
from ds_minimodel.engine.planning.memory_and_traffic import Sizes
from ds_minimodel.engine.planning.planner import Planner, ranks_for_copy
from ds_minimodel.engine.zero.config import zero_memory
from ds_minimodel.pipeline.check import check_deepspeed_file
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.planned import planned_batches, planned_steps


def plans(recipe: Recipe, world_size: int, device_name: str, ranks_per_node: int | None = None) -> list[dict[str, Any]]:
    """Rows as JSON, one for each step of each system of the recipe.

    ranks_per_node: all ranks, up to 8, where not given. UserError for an unknown device and for ranks that do
    not divide a batch, or that engine.tensor_parallel does not divide.
    """
    ranks_per_node = ranks_per_node or min(8, world_size)
    device = devices.named(device_name, ranks_per_node)
    engine = recipe.engine
    precision = device.resolve(engine.precision)
    check_deepspeed_file(recipe, replicas_of(world_size, engine.tensor_parallel))
    planners: dict[Any, Planner] = {}  # steps of the same architecture, in which the same trains, have the same plan
    rows = []
    for step in planned_steps(recipe):
        key = step.name, step.module.body.config
        if key not in planners:
            planners[key] = Planner(
                step.module, planned_batches(recipe, step), precision, device.type, device.capability
            )
        sizes = Sizes(
            engine.zero_stage,
            precision,
            step.section.batch_size,
            engine.micro_batch_size,
            replicas_of(world_size, engine.tensor_parallel),
            ranks_for_copy(ranks_per_node, engine.tensor_parallel),
            device.memory,
            zero_memory(engine.deepspeed.given() if engine.deepspeed else {}),
        )
        plan = planners[key].plan(sizes)
        rows.append(
            {
                "system": step.system,
                "step": step.name,
                "device": device.name,
                **{key: value for key, value in sizes._asdict().items() if key != "zero"},
                "world_size": world_size,
                "ranks_per_node": ranks_per_node,
                "tensor_parallel": engine.tensor_parallel,
                "micro_batch_size": sizes.micro,
                **plan.summary(),
                "smallest_zero_stage": planners[key].smallest_stage(sizes),
                "largest_micro_batch": planners[key].largest_micro_batch(sizes),
                "parts": [asdict(part) for part in plan.parts],
            }
        )
    return rows
