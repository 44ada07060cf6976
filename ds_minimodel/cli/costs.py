"""`ds-minimodel flops`, `plan` and `calibrate` on the command line: what a recipe costs, before anything is started."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli.steps import (
    Commands,
    Options,
    add_engine_options,
    add_recipe_command,
    number_of_ranks,
    overrides_of,
    recipe_of,
)
from ds_minimodel.common.errors import UserError, printable
from ds_minimodel.engine.ranks.launch import name_the_cpu, restart_with_cpu_settings
from ds_minimodel.planning import devices

if TYPE_CHECKING:
    from ds_minimodel.results.render import Table

MEASURE = "measure how fast this machine is, from which `plan` predicts time; takes a minute or two"


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


def _flops(options: Options) -> None:
    from ds_minimodel.recipe.costs import recipe_costs
    from ds_minimodel.results.tables import cost_table

    rows = recipe_costs(recipe_of(options)[0])
    _show(options, {"rows": rows}, "Costs", lambda: [cost_table(rows)])


def _plan(options: Options) -> None:
    name_the_cpu()  # before the import, which brings DeepSpeed
    from ds_minimodel.planning.plans import plans
    from ds_minimodel.planning.tables import plan_tables
    from ds_minimodel.recipe.reading import package_recipes

    if Path(options.recipe).is_dir() and options.recipe not in package_recipes():
        _plan_model(options)
        return
    rows = plans(recipe_of(options)[0], options.world_size, options.device, options.ranks_per_node)
    _show(options, {"rows": rows}, "Plan", lambda: plan_tables(rows))


def _plan_model(options: Options) -> None:
    """Plan over a folder of Hugging Face's in place of a recipe."""
    from ds_minimodel.bodies import BODIES
    from ds_minimodel.common.vocabulary import UNKNOWN_LANGUAGE
    from ds_minimodel.interop.hugging_face import read_config
    from ds_minimodel.planning.by_depth import depth_tables, plans_by_depth
    from ds_minimodel.recipe.base import Base

    _, config, vocab_size, _ = read_config(options.recipe)
    base = Base(config, BODIES[config.kind].objective, UNKNOWN_LANGUAGE, vocab_size)
    where = options.world_size, options.device, options.ranks_per_node
    rows = plans_by_depth(options.recipe, base, overrides_of(options), *where)
    _show(options, {"rows": rows}, "Plan", lambda: depth_tables(rows))


def _calibrate(options: Options) -> None:
    _check_is_ours(Path(options.file))
    name_the_cpu()
    restart_with_cpu_settings()
    from ds_minimodel.common.files import write_json
    from ds_minimodel.planning.calibration import CLOCKS, calibrate

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
    from ds_minimodel.results.render import to_markdown, to_terminal

    if options.json:
        print(json.dumps(value, indent=1))
    elif sys.stdout.isatty():
        print(to_terminal(tables(), shutil.get_terminal_size().columns))
    else:
        print(to_markdown(title, tables()))
