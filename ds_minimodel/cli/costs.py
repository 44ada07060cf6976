"""`ds-minimodel flops` and `plan` on the command line: what a recipe costs, before anything is started."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli.steps import Commands, Options, add_engine_options, add_recipe_command, number_of_ranks, recipe_of
from ds_minimodel.engine.ranks.launch import name_the_cpu

if TYPE_CHECKING:
    from ds_minimodel.results.render import Table


def add_arguments(commands: Commands) -> None:
    """Add the two commands to argparse's `commands`."""
    flops = add_recipe_command(commands, "flops", "cost of every step, by the paper's formulas and as executed", _flops)
    flops.add_argument("--json", action="store_true", help="print JSON")
    plan = add_recipe_command(
        commands, "plan", "memory and traffic of every training step, before it is started", _plan
    )
    add_engine_options(plan)
    plan.add_argument("--world-size", type=number_of_ranks, metavar="W", default=1, help="ranks in all; default: 1")
    plan.add_argument("--ranks-per-node", type=number_of_ranks, metavar="N", help="default: all ranks, up to 8")
    plan.add_argument(
        "--device",
        metavar="NAME",
        default="cpu",
        help="v100-16g, v100-32g, a100-80g, h100-80g or cpu, this machine; default: cpu",
    )
    plan.add_argument("--json", action="store_true", help="print JSON")


def _flops(options: Options) -> None:
    from ds_minimodel.recipe.costs import recipe_costs
    from ds_minimodel.results.tables import cost_table

    rows = recipe_costs(recipe_of(options)[0])
    _show(options, rows, "Costs", lambda: [cost_table(rows)])


def _plan(options: Options) -> None:
    name_the_cpu()  # before the import, which brings DeepSpeed
    from ds_minimodel.pipeline.plans import plans
    from ds_minimodel.results.plan_tables import plan_tables

    rows = plans(recipe_of(options)[0], options.world_size, options.device, options.ranks_per_node)
    _show(options, rows, "Plan", lambda: plan_tables(rows))


def _show(options: Options, rows: list[dict[str, Any]], title: str, tables: "Callable[[], list[Table]]") -> None:
    from ds_minimodel.results.render import to_markdown

    print(json.dumps({"rows": rows}, indent=1) if options.json else to_markdown(title, tables()))
