"""What a cell of the fifth study leaves in results.jsonl."""

import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ds_minimodel
from ds_minimodel.api import recipe_costs
from ds_minimodel.common.files import read_json
from ds_minimodel.config.schema import Recipe
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.report.curves import SCORES_FILE
from study.fifth.cells import Cell

RESULTS = Path(__file__).with_name("results.jsonl")
# What a line says of the English of the first kind that is scored, and of tokens.
OF_ENGLISH = "source_lines cut_otherwise same_changed tokens_before tokens_after old_share".split()
Row = dict[str, Any]


def result_of(cell: Cell, recipe: Recipe) -> Row:
    """What stands in results.jsonl, but for the time."""
    layout = WorkdirLayout(recipe.workdir)
    (system,) = recipe.chosen_systems
    corpus = PairCorpus(layout.pairs(cell.language))
    scores = {
        task: read_json(layout.evaluate(system, cell.language, task, recipe.seed) / SCORES_FILE)
        for task in recipe.finetune.tasks
        if task.endswith("-test")
    }
    costs = recipe_costs(recipe) if recipe.adapt.steps else []
    path = layout.changes(system, cell.language)  # of extend alone
    changes = read_json(path) if path.exists() else {}
    return {
        "cell": cell.name,
        **asdict(cell),
        "learned": {text.name: len(text.pairs) for text in corpus.training},
        "new_tokens": recipe.tokenizer.vocab_size,
        "steps": recipe.adapt.steps,
        "eflops": sum(row["executed_eflops"] for row in costs if row["step"] == "adapt"),
        "scores": {task: rows[-1] for task, rows in scores.items()},
        "english": {key: value for key, value in changes.items() if key in OF_ENGLISH},
        "commit": commit(),
    }


def commit() -> str:
    """The commit of the package that runs."""
    folder = str(Path(ds_minimodel.__file__).parent)
    command = ["git", "-C", folder, "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, text=True).strip()
