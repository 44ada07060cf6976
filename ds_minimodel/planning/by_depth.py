"""What a mini-model of each depth would save over a model that somebody has, before it is imported."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds_minimodel.costs import step_flops
from ds_minimodel.planning.plans import Row, plans
from ds_minimodel.planning.tables import duration, size_of
from ds_minimodel.recipe.base import Base
from ds_minimodel.recipe.costs import recipe_costs, step_work
from ds_minimodel.recipe.reading import recipe_of_text
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.results.render import Cell, Table

SHARES = (6, 4, 3, 2)  # a mini-model's layers of the body are its layers divided by these
_MEGA = 1e6


def plans_by_depth(
    folder: str | Path,
    base: Base,
    overrides: Sequence[str],
    world_size: int,
    device: str,
    ranks_per_node: int | None = None,
) -> list[Row]:
    """Rows as JSON: of the whole body (new_layers 0) and of MiniPost's mini-models, by falling depth.

    "adapt" and "build_mini" (None for the body) have formula and executed FLOPs of a token, and the whole step's memory
    and time as `plans` has them. folder: the model's, for messages; overrides: of a recipe with the default steps.
    """
    rows = []
    for recipe in _recipes(folder, base, overrides):
        (system,) = recipe.chosen_systems
        mini = system.builds_mini
        depth, new_layers = (recipe.mini.depth, recipe.mini.new_layers) if mini else (base.config.num_layers, 0)
        planned = {row["step"]: row for row in plans(recipe, world_size, device, ranks_per_node)}
        eflops = {row["step"]: row["formula_eflops"] for row in recipe_costs(recipe)}
        steps = {
            step: {**_flops_of_token(recipe, step, depth + new_layers, depth), "eflops": eflops[step], **facts}
            for step, facts in planned.items()
        }
        vocab_size = recipe.tokenizer.vocab_size
        row = {"depth": depth, "new_layers": new_layers, "vocab_size": vocab_size, "adapt": steps["adapt"]}
        rows.append({**row, "build_mini": steps.get("build-mini")})
    return rows


def _recipes(folder: str | Path, base: Base, overrides: Sequence[str]) -> Iterator[Recipe]:
    """A recipe for the whole body, and one for each depth of a mini-model with two new layers that is smaller."""
    layers = base.config.num_layers
    period = base.config.period  # what lies below includes a layer that sees all, where not all do
    depths = {-(-max(1, layers // share) // period) * period for share in SHARES}
    values: dict[str, Any] = {
        "workdir": "plan",
        "base": str(folder),
        "systems": ["bl_base"],
        "languages": {"source": "source", "targets": ["target"]},
        "data": {"text": {"source": ["source.txt"], "target": ["target.txt"]}},
        "tokenizer": {"vocab_size": 32_000},
        "mini": {"depth": 1},
        **{step: {"seq_length": min(512, base.config.max_positions)} for step in ("build_mini", "adapt")},
    }
    for depth in (0, *sorted((depth for depth in depths if depth + 2 < layers), reverse=True)):
        if depth:
            values |= {"systems": ["minipost"], "mini": {"depth": depth, "new_layers": 2}}
        yield recipe_of_text(json.dumps(values), folder, overrides, base)


def _flops_of_token(recipe: Recipe, step: str, num_layers: int, depth: int) -> Row:
    is_adapt = step == "adapt"
    vocab_size = recipe.tokenizer.vocab_size if is_adapt else recipe.source_vocab_size
    work = step_work(recipe, recipe.adapt if is_adapt else recipe.build_mini, vocab_size)
    cost = step_flops(step, work, [num_layers], depth)
    tokens = work.num_sequences * work.seq_length
    return {"formula_flops_of_token": cost.formula / tokens, "executed_flops_of_token": cost.executed / tokens}


def depth_tables(rows: Sequence[Row]) -> list[Table]:
    """The rows as one table."""
    whole, first = rows[0]["adapt"], rows[0]
    cells = []
    for row in rows:
        adapt, build = row["adapt"], row["build_mini"]
        layers = f"{row['depth']} + {row['new_layers']}" if build else f"{row['depth']} (all)"
        cells.append(
            [
                Cell(layers),
                Cell(f"{adapt['formula_flops_of_token'] / _MEGA:,.0f}"),
                Cell(f"{adapt['executed_flops_of_token'] / _MEGA:,.0f}"),
                Cell(f"{whole['formula_flops_of_token'] / adapt['formula_flops_of_token']:.1f}"),
                Cell(size_of(adapt["memory"]["total"])),
                Cell(_taken(adapt)),
                Cell(f"{build['eflops'] / adapt['eflops']:.2f}" if build else "–"),
                Cell(_taken(build) if build else "–"),
            ]
        )
    bound = "" if whole["time"] is None or not whole["time"]["is_bound"] else "; times are lower bounds, by data sheet"
    notes = [
        f"A new language's vocabulary of {first['vocab_size']:,}, {whole['world_size']} ranks on {whole['device']}, "
        f"ZeRO {whole['zero_stage']}, {whole['precision']}, micro-batches of {whole['micro_batch_size']}{bound}. A "
        "mini-model's step 1b is paid once for all languages. Layers: the body's, and new ones. Other sizes: "
        "KEY=VALUE, as in a recipe (tokenizer.vocab_size=50000)."
    ]
    columns = ["step 2, MFLOP a token", "executed", "times less", "memory", "time", "step 1b, of a step 2", "its time"]
    return [Table("Step 2 by depth", ["Layers", *columns], cells, notes=notes)]


def _taken(facts: Row) -> str:
    return "–" if facts["time"] is None else duration(facts["time"]["hours"])
