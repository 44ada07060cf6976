"""What a mini-model of each depth would save over a model that somebody has, before it is imported."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ds_minimodel.costs.plans import Row, plans
from ds_minimodel.costs.tables import duration, size_of
from ds_minimodel.recipe.base import Base
from ds_minimodel.recipe.reading import recipe_of_text
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.report.render import Table

SHARES = (6, 4, 3, 2)  # a mini-model's layers of the body are its layers divided by these


def plans_by_depth(
    folder: str | Path, base: Base, overrides: Sequence[str], ranks: int, device: str, peak: float | None = None
) -> list[Row]:
    """Rows as JSON: of the whole body (new_layers 0) and of MiniPost's mini-models, by falling depth.

    "adapt" and "build_mini" (None for the body) are rows of `plans`. folder: the model's, for messages; overrides: of a
    recipe with the default steps.
    """
    rows = []
    for recipe in _recipes(folder, base, overrides):
        (system,) = recipe.chosen_systems
        mini = system.builds_mini
        steps = {row["step"]: row for row in plans(recipe, ranks, device, peak)}
        rows.append(
            {
                "depth": recipe.mini.depth if mini else base.config.num_layers,
                "new_layers": recipe.mini.new_layers if mini else 0,
                "vocab_size": recipe.tokenizer.vocab_size,
                "adapt": steps["adapt"],
                "build_mini": steps.get("build-mini"),
            }
        )
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


def depth_tables(rows: Sequence[Row]) -> list[Table]:
    """The rows as one table."""
    whole = rows[0]["adapt"]
    columns = ["Layers", "step 2, MFLOP a token", "executed", "times less", "memory"]
    columns += ["step 2 at least"] if whole["peak"] else []
    cells = []
    for row in rows:
        adapt, build = row["adapt"], row["build_mini"]
        cells.append(
            [
                f"{row['depth']} + {row['new_layers']}" if build else f"{row['depth']} (all)",
                *(f"{_mflop_of_token(adapt, count):,.0f}" for count in ("formula", "executed")),
                f"{whole['formula_eflops'] / adapt['formula_eflops']:.1f}",
                size_of(adapt["memory"]["total"]),
                *([duration(adapt["least_hours"])] if whole["peak"] else []),
                f"{build['formula_eflops'] / adapt['formula_eflops']:.2f}" if build else "–",
            ]
        )
    tokens = whole["steps"] * whole["batch_size"] * whole["seq_length"]
    notes = [
        f"A new language's vocabulary of {rows[0]['vocab_size']:,}, trained for {tokens:,} tokens. Ranks: "
        f"{whole['ranks']}, on {whole['device']}; ZeRO {whole['zero_stage']}, {whole['precision']}, micro-batches of "
        f"{whole['micro_batch_size']}. A mini-model's step 1b is paid once for all languages. Layers: the body's, and "
        "new ones. Other sizes: KEY=VALUE, as in a recipe (tokenizer.vocab_size=50000 adapt.steps=30000)."
    ]
    return [Table("Step 2 by depth", [*columns, "step 1b, of a step 2"], cells, notes=notes)]


def _mflop_of_token(row: Row, count: str) -> float:
    return row[f"{count}_eflops"] * 1e12 / (row["steps"] * row["batch_size"] * row["seq_length"])
