"""`ds-minimodel flops`, `plan` and `calibrate` on the command line: what a recipe costs, before anything is started."""

import argparse
import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli.steps import Commands, Options, add_engine_options, add_recipe_command, number_of_ranks, recipe_of
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.engine.planning import devices
from ds_minimodel.engine.ranks.launch import name_the_cpu, restart_with_cpu_settings

if TYPE_CHECKING:
    from ds_minimodel.recipe.schema import Recipe
    from ds_minimodel.results.render import Table

MEASURE = "measure this machine's figures, from which `plan` foretells time; takes a minute or two"


def add_arguments(commands: Commands) -> None:
    """Add the commands to argparse's `commands`."""
    flops = add_recipe_command(commands, "flops", "cost of every step, by the paper's formulas and as executed", _flops)
    flops.add_argument("--json", action="store_true", help="print JSON")
    plan = add_recipe_command(commands, "plan", "memory, traffic and time of every step, before it is started", _plan)
    add_engine_options(plan)
    plan.add_argument("--world-size", type=number_of_ranks, metavar="W", default=1, help="ranks in all; default: 1")
    plan.add_argument("--ranks-per-node", type=number_of_ranks, metavar="N", help="default: all ranks, up to 8")
    plan.add_argument(
        "--device",
        metavar="NAME",
        default="cpu",
        help=f"{', '.join(devices.NAMES)}, which is this machine, or a file of `calibrate`; default: cpu",
    )
    plan.add_argument("--price", type=_price, metavar="P", help="of an hour of one device, for the cost of each step")
    plan.add_argument(
        "--example-tokens", type=number_of_ranks, metavar="T", default=128, help="of a task's example; default: 128"
    )
    plan.add_argument("--examples", type=number_of_ranks, metavar="N", help="of a task's training file, for its hours")
    plan.add_argument(
        "--scale",
        type=_range,
        metavar="A..B",
        help="weak and strong scaling on A, 2A, 4A … B ranks, in place of the plan",
    )
    plan.add_argument("--picture", metavar="FILE", help="with --scale: its efficiency as a PNG")
    plan.add_argument("--json", action="store_true", help="print JSON")
    calibrate = commands.add_parser("calibrate", help=MEASURE, description=MEASURE)
    calibrate.add_argument("file", metavar="FILE", help="JSON file to write, for `plan --device FILE`")
    calibrate.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: time that the process ran, for one thread on a machine that others use too",
    )
    calibrate.set_defaults(run=_calibrate)


def _price(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no price")


def _range(text: str) -> list[int]:
    """Numbers of ranks from A, doubled up to B."""
    found = re.fullmatch(r"([1-9]\d{0,5})\.\.([1-9]\d{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of ranks as 8..1024")
    first, last = map(int, found.groups())
    return [first << times for times in range(20) if first << times <= last]


def _flops(options: Options) -> None:
    from ds_minimodel.recipe.costs import recipe_costs
    from ds_minimodel.results.tables import cost_table

    rows = recipe_costs(recipe_of(options)[0])
    _show(options, {"rows": rows}, "Costs", lambda: [cost_table(rows)])


def _plan(options: Options) -> None:
    name_the_cpu()  # before the import, which brings DeepSpeed
    from ds_minimodel.pipeline import plans
    from ds_minimodel.results.plan_tables import plan_tables

    recipe = recipe_of(options)[0]
    if options.scale:
        _scale(options, recipe)
        return
    if options.picture:
        raise UserError("--picture: it is of scaling; give --scale A..B too")
    arguments = options.device, options.ranks_per_node, options.price
    rows = plans.plans(recipe, options.world_size, *arguments)
    target = plans.target_of(options.device, options.world_size, options.ranks_per_node, options.price)
    tasks = plans.task_times(recipe, options.world_size, target, options.example_tokens, options.examples)
    _show(options, {"rows": rows, "tasks": tasks}, "Plan", lambda: plan_tables(rows, tasks))


def _scale(options: Options, recipe: "Recipe") -> None:
    from ds_minimodel.common.files import atomic_write
    from ds_minimodel.pipeline import plans
    from ds_minimodel.results.plan_tables import scaling_tables

    target = plans.target_of(options.device, options.scale[-1], options.ranks_per_node, options.price)
    rows = plans.scaling(recipe, options.scale, target)
    if options.picture:
        from ds_minimodel.results.plots import plot_scaling

        with atomic_write(options.picture) as file:
            file.write(plot_scaling(rows))
    ranks = plans.recommended_ranks(rows)
    recommended = [{"system": system, "step": step, "ranks": most} for (system, step), most in ranks.items()]
    _show(options, {"rows": rows, "recommended": recommended}, "Scaling", lambda: scaling_tables(rows, ranks))


def _calibrate(options: Options) -> None:
    _check_is_ours(Path(options.file))
    name_the_cpu()
    restart_with_cpu_settings()
    from ds_minimodel.common.files import write_json
    from ds_minimodel.engine.planning.calibration import CLOCKS, calibrate

    device = calibrate(CLOCKS[options.clock])
    write_json(options.file, device.model_dump())
    print(printable(f"{device.name}: {options.file}, for `ds-minimodel plan RECIPE --device {options.file}`"))


def _check_is_ours(path: Path) -> None:
    """UserError, before anything is measured, where `path` is no calibration or cannot be written."""
    from ds_minimodel.common.files import clear_write_errors, read_model

    if not path.name or path.is_dir():
        raise UserError(f"{path}: a folder; give the name of a file to write")
    if os.path.lexists(path):
        try:
            read_model(path, devices.Device, "")
        except UserError:
            raise UserError(f"{path}: there already, and no calibration; give another name") from None
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def _show(options: Options, value: dict[str, Any], title: str, tables: "Callable[[], list[Table]]") -> None:
    from ds_minimodel.results.render import to_markdown

    print(json.dumps(value, indent=1) if options.json else to_markdown(title, tables()))
