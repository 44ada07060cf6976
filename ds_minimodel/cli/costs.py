"""`ds-minimodel flops`, `fertility` and `plan` on the command line: what a recipe costs, before
anything is started.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli import steps
from ds_minimodel.common.errors import UserError
from ds_minimodel.costs.memory import NAMES
from ds_minimodel.launch import hosts as launch
from ds_minimodel.launch import process

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe
    from ds_minimodel.report.render import Table


def add_arguments(commands: steps.Commands) -> None:
    """Add the commands to argparse's `commands`."""
    flops = steps.add_recipe_command(
        commands, "flops", "cost of every step, by the paper's formulas and as executed", _flops
    )
    flops.add_argument("--json", action="store_true", help="print JSON")
    fertility = steps.add_recipe_command(
        commands,
        "fertility",
        "what new tokens bring to a language that extends a base's vocabulary",
        _fertility,
    )
    fertility.add_argument("--json", action="store_true", help="print JSON")
    text = "memory and FLOPs of every step before it is started, or its time"
    plan = steps.add_recipe_command(
        commands,
        "plan",
        text,
        _plan,
        ", a model (a folder of Hugging Face's or OWNER/NAME on the Hub)",
    )
    steps.add_engine_options(plan)
    plan.add_argument(
        "--ranks",
        type=steps.number_of_ranks,
        metavar="N",
        default=1,
        help="ranks in all; default: 1",
    )
    plan.add_argument(
        "--device",
        metavar="NAME",
        default="cpu",
        help=f"{', '.join(NAMES)}, which is this machine with all ranks; default: cpu",
    )
    plan.add_argument(
        "--peak",
        type=float,
        metavar="TFLOPS",
        help="of one device: how long the FLOPs take there at least",
    )
    plan.add_argument(
        "--measure",
        action="store_true",
        help="run some updates of one step here, and say what all take",
    )
    plan.add_argument(
        "--step",
        choices=("pretrain", "build-mini", "adapt"),
        default="adapt",
        help="to measure; default: adapt",
    )
    plan.add_argument("--json", action="store_true", help="print JSON")


def _flops(options: steps.Options) -> None:
    from ds_minimodel.config.flops import recipe_costs
    from ds_minimodel.report.tables import cost_table

    recipe = steps.recipe_of(options)[0]
    rows = recipe_costs(recipe)
    _show(
        options,
        rows,
        "Costs",
        lambda: [cost_table(rows, recipe.base is None, len(recipe.languages.targets))],
    )


def _fertility(options: steps.Options) -> None:
    from ds_minimodel.pipeline.fertility import fertility
    from ds_minimodel.report.tables import fertility_table

    rows = fertility(steps.recipe_of(options)[0])
    _show(options, rows, "Fertility", lambda: [fertility_table(rows)])


def _plan(options: steps.Options) -> int:
    if options.peak is not None and not 0 < options.peak < math.inf:
        raise UserError(f"--peak {options.peak}: no number of TFLOP/s")
    if options.measure:
        if options.peak is not None:
            raise UserError("--peak: of a forecast; leave it or --measure out")
        return _measure(options)
    launch.name_the_cpu()  # before the import, which brings DeepSpeed
    from ds_minimodel.config.reading import package_recipes

    path = Path(options.recipe)
    is_name = "/" in options.recipe and path.suffix not in (".yaml", ".yml") and not path.exists()
    is_model = (
        is_name or path.is_dir() or path.suffix.lower() == ".gguf"
    ) and options.recipe not in package_recipes()
    recipe = _recipe_over_model(options) if is_model else steps.recipe_of(options)[0]
    from ds_minimodel.costs.plans import plans
    from ds_minimodel.costs.tables import plan_tables

    rows = plans(recipe, options.ranks, options.device, options.peak)
    _show(options, rows, "Plan", lambda: plan_tables(rows, len(recipe.languages.targets)))
    return 0


def _recipe_over_model(options: steps.Options) -> "Recipe":
    """What `extend` would do to a model of Hugging Face's, as a recipe: its form, and a size that
    KEY=VALUE change.
    """
    from ds_minimodel.config.base import read_base
    from ds_minimodel.config.extension import first_values, set_sizes
    from ds_minimodel.config.reading import recipe_of_values
    from ds_minimodel.costs.memory import device_named
    from ds_minimodel.costs.sizes import fit

    base, languages = read_base(options.recipe), ("source", "target")
    texts = {name: [f"{name}.txt"] for name in languages}
    values = first_values(options.recipe, base, Path(options.recipe), languages, texts)
    values["tokenizer"]["vocab_size"] = 8_000
    set_sizes(
        values,
        base,
        4_000_000,
        4_000_000,
        values["adapt"]["seq_length"],
        timed=False,
        ranks=options.ranks,
    )
    values["adapt"]["warmup_steps"] = (
        1  # costs do not depend on it, and an override may leave few steps
    )
    recipe, overrides = (
        recipe_of_values(values, options.recipe, steps.overrides_of(options)),
        values.get("engine", {}),
    )
    values["engine"] = fit(recipe, options.ranks, device_named(options.device)).engine | overrides
    return recipe_of_values(values, options.recipe)


def _measure(options: steps.Options) -> int:
    """Measure a step on ranks here, which a launcher may have started; the exit code."""
    recipe, overrides = steps.recipe_of(options)
    launch.restart_with_cpu_settings()
    if options.ranks > 1 and not process.launched():
        launch.check_ranks(options.ranks)
        arguments = ["plan", options.recipe, *overrides, "--measure", "--step", options.step]
        return launch.launch([*arguments, *(["--json"] if options.json else [])], options.ranks)
    from ds_minimodel.costs.measure import measured_rows
    from ds_minimodel.costs.tables import measured_table
    from ds_minimodel.training.world import join_ranks

    if process.launched():
        process.end_with_launcher()
    world = join_ranks(recipe.engine.tensor_parallel)
    try:
        rows = measured_rows(recipe, options.step, world)
    except process.Stopped:
        return launch.INTERRUPTED
    if world.is_main:
        _show(options, rows, "Plan", lambda: [measured_table(rows)])
    return 0


def _show(
    options: steps.Options,
    rows: list[dict[str, Any]],
    title: str,
    tables: "Callable[[], list[Table]]",
) -> None:
    from ds_minimodel.report.render import to_markdown

    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        print(to_markdown(title, tables()))
