"""`ds-minimodel flops`, `fertility` and `plan`: costs of a recipe before anything is started."""

import json
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_minimodel.cli import steps
from ds_minimodel.common.errors import UserError
from ds_minimodel.launch import hosts as launch
from ds_minimodel.pipeline.memory import NAMES

if TYPE_CHECKING:
    from ds_minimodel.config.schema import Recipe
    from ds_minimodel.report.render import Table


def add_arguments(commands: steps.Commands) -> None:
    """Add the commands to argparse's `commands`."""
    flops = steps.add_recipe_command(
        commands,
        "flops",
        "show the FLOPs of every step, by the paper's formulas and as executed",
        _flops,
    )
    flops.add_argument("--json", action="store_true", help="print JSON")
    fertility = steps.add_recipe_command(
        commands,
        "fertility",
        "show what new tokens would bring to a base's vocabulary",
        _fertility,
    )
    fertility.add_argument("--json", action="store_true", help="print JSON")
    plan = steps.add_recipe_command(
        commands,
        "plan",
        "compute memory and FLOPs of every step before it starts",
        _plan,
        ", a model (a folder of Hugging Face's or OWNER/NAME on the Hub)",
    )
    steps.add_engine_options(plan)
    plan.add_argument(
        "--ranks",
        type=steps.number_of_ranks,
        metavar="N",
        default=1,
        help="number of ranks; default: 1",
    )
    plan.add_argument(
        "--device",
        metavar="NAME",
        default="cpu",
        help=f"{', '.join(NAMES)} (this machine with all ranks); default: cpu",
    )
    plan.add_argument(
        "--peak",
        type=float,
        metavar="TFLOPS",
        help="TFLOP/s of one device, for a lower bound of the hours",
    )
    plan.add_argument("--json", action="store_true", help="print JSON")


def _flops(options: steps.Options) -> None:
    from ds_minimodel.config.flops import recipe_costs
    from ds_minimodel.report.tables import cost_table

    recipe, _ = steps.recipe_of(options)
    rows = recipe_costs(recipe)
    languages = len(recipe.languages.targets)
    table = cost_table(rows, in_days=recipe.base is None, languages=languages)
    _show(options, rows, "Costs", [table])


def _fertility(options: steps.Options) -> None:
    from ds_minimodel.pipeline.fertility import fertility
    from ds_minimodel.pipeline.registry import STEPS
    from ds_minimodel.pipeline.run import is_pending, run_step_here
    from ds_minimodel.report.tables import fertility_table

    recipe, _ = steps.recipe_of(options)
    if recipe.base is not None and is_pending(STEPS["corpus"], recipe):
        run_step_here(STEPS["corpus"], recipe)
    rows = fertility(recipe)
    _show(options, rows, "Fertility", [fertility_table(rows)])


def _plan(options: steps.Options) -> int:
    if options.peak is not None and not 0 < options.peak < math.inf:
        raise UserError(f"--peak {options.peak}: no number of TFLOP/s")
    # It must come before the import, which brings DeepSpeed.
    launch.name_the_cpu()
    from ds_minimodel.pipeline.plan import plans
    from ds_minimodel.report.render import duration

    is_model = _is_model(options.recipe)
    recipe = _recipe_over_model(options) if is_model else steps.recipe_of(options)[0]
    rows = plans(recipe, options.ranks, options.device, options.peak)
    what = ""
    if is_model:
        adapt = recipe.adapt
        tokens = adapt.steps * adapt.batch_size * adapt.seq_length
        hours, speed = _time_of(rows, options.peak)
        what = (
            f"What extend would train: {recipe.systems[0]} with "
            f"{recipe.tokenizer.vocab_size:,} new tokens, {adapt.steps:,} steps of "
            f"{adapt.batch_size} x {adapt.seq_length} tokens, "
            f"{tokens:,} in all, some {duration(hours)} at {speed:g} TFLOP/s. KEY=VALUE "
            "(adapt.steps=100, tokenizer.vocab_size=1000) plans another size, --peak another speed."
        )
    _show(options, rows, "Plan", plan_tables(rows, len(recipe.languages.targets), what))
    return 0


def _time_of(rows: list[dict[str, Any]], peak: float | None) -> tuple[float, float]:
    """Return hours of a plan's steps, and the TFLOP/s of all ranks from which they follow.

    `peak` is that of one rank; without one the guess of `extend` serves.
    """
    from ds_minimodel.extend.recipe import GUESSED_FLOPS

    first = rows[0]
    kind = "cpu" if first["device"] == "cpu" else "cuda"
    speed = first["ranks"] * (peak or GUESSED_FLOPS[kind] / 1e12)
    teraflops = 1e6 * sum(row["executed_eflops"] for row in rows)
    return teraflops / speed / 3600, speed


def _is_model(name: str) -> bool:
    """Return whether a plan's argument is a model, and not a recipe."""
    from ds_minimodel.config.reading import package_recipes

    if name in package_recipes():
        return False
    path = Path(name)
    is_on_hub = "/" in name and path.suffix not in (".yaml", ".yml") and not path.exists()
    return is_on_hub or path.is_dir() or path.suffix.lower() == ".gguf"


def _recipe_over_model(options: steps.Options) -> "Recipe":
    """Return the recipe by which `extend` would train a model; KEY=VALUE change its size."""
    from ds_minimodel.config.base import read_base
    from ds_minimodel.config.reading import recipe_of_values
    from ds_minimodel.extend.config import ExtendConfig
    from ds_minimodel.extend.recipe import first_values, set_sizes
    from ds_minimodel.pipeline.memory import device_named
    from ds_minimodel.pipeline.plan import fit

    base = read_base(options.recipe)
    config = ExtendConfig(
        model=options.recipe,
        text=["target.txt"],
        language="target",
        source="source",
        source_text=["source.txt"],
        vocab_size=8_000,
        out=options.recipe,
    )
    values = first_values(config, base, tokens=4_000_000)
    set_sizes(
        values,
        base,
        tokens=4_000_000,
        text_tokens=4_000_000,
        seq_length=values["adapt"]["seq_length"],
        is_timed=False,
        ranks=options.ranks,
    )
    # Costs do not depend on it, and an override may leave few steps.
    values["adapt"]["warmup_steps"] = 1
    # The overrides are written into `values`; what they say of the engine goes before what fits.
    recipe = recipe_of_values(values, options.recipe, steps.overrides_of(options))
    given_engine = values.get("engine", {})
    fitting = fit(recipe, options.ranks, device_named(options.device))
    values["engine"] = fitting.engine | given_engine
    return recipe_of_values(values, options.recipe)


def _show(
    options: steps.Options, rows: list[dict[str, Any]], title: str, tables: "list[Table]"
) -> None:
    """Print the rows as JSON, or the tables as Markdown."""
    from ds_minimodel.report.render import to_markdown

    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
    else:
        for line in to_markdown(title, tables).splitlines():
            is_text = line and not line.startswith(("|", "#", "-"))
            print(textwrap.fill(line, 100) if is_text else line)


def plan_tables(rows: list[dict[str, Any]], languages: int = 1, what: str = "") -> "list[Table]":
    """Return the tables of a plan: memory of the steps, and their FLOPs.

    Args:
        rows: Of `pipeline.plan.plans`.
        languages: Count of languages that share what is paid once.
        what: A sentence that says what is planned.
    """
    from ds_minimodel.config.systems import SYSTEMS
    from ds_minimodel.report.render import Table, duration, size_of
    from ds_minimodel.report.tables import cost_table

    first = rows[0]
    notes = [what] if what else []
    notes.append(
        f"Ranks: {first['ranks']}, on {first['device']} with {size_of(first['device_memory'])} for "
        f"each; ZeRO {first['zero_stage']}, {first['precision']}. Weights, state (gradients, fp32 "
        "copies and Adam's moments) and activations: the peak of one device within a step, "
        "predicted within about 20 %. Sent: by each rank in one step. Up to: the largest "
        "micro-batch that fits. ZeRO: the lowest stage that fits."
    )
    if first["tensor_parallel"] > 1:
        notes.append(
            f"{first['tensor_parallel']} ranks share one replica; the activations that they "
            "exchange are not counted in what is sent."
        )
    if first["peak"]:
        notes.append(
            f"At least: the executed FLOPs at {first['peak']:g} TFLOP/s on every rank, without "
            "reading, writing and the network. adapt is for one language."
        )
    columns = ["System", "Step", "batch", "up to", "weights", "state", "activations", "total"]
    columns += ["sent", "fits", "ZeRO"]
    if first["peak"]:
        columns.append("at least")
    cells = []
    for row in rows:
        memory = row["memory"]
        largest = row["largest_micro_batch"]
        stage = row["smallest_zero_stage"]
        cell = [
            SYSTEMS[row["system"]].title,
            row["step"],
            str(row["micro_batch_size"]),
            "none" if largest is None else str(largest),
            size_of(memory["weights"]),
            size_of(memory["gradients"] + memory["optimizer"]),
            size_of(memory["activations"]),
            size_of(memory["total"]),
            size_of(row["traffic"]["total"]),
            "yes" if row["fits"] else "NO",
            "none" if stage is None else str(stage),
        ]
        if first["peak"]:
            cell.append(duration(row["least_hours"]))
        cells.append(cell)
    steps = Table("Steps", columns, cells, notes=notes)
    return [
        steps,
        cost_table(rows, in_days=first["device"].startswith("v100"), languages=languages),
    ]
