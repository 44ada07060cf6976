"""What a cell of the fifth study leaves in its line."""

import subprocess
from math import log
from pathlib import Path
from typing import Any

import ds_minimodel
from ds_minimodel.api import recipe_costs
from ds_minimodel.common.files import read_json
from ds_minimodel.config.schema import Recipe
from ds_minimodel.config.systems import System
from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.pairs import PairCorpus
from ds_minimodel.pipeline.training import seeds_of_task
from ds_minimodel.report.curves import SCORES_FILE, read_losses
from study.fifth.cells import Cell

RESULTS = Path(__file__).with_name("results.jsonl")
# What a line says of the English of the first kind that is scored, and of tokens.
OF_ENGLISH = "source_lines cut_otherwise same_changed tokens_before tokens_after old_share".split()
Row = dict[str, Any]


def result_of(cell: Cell, recipe: Recipe) -> Row:
    """What a call of extend in part A did."""
    layout = WorkdirLayout(recipe.workdir)
    (system,) = recipe.chosen_systems
    scores = {
        task: read_json(layout.evaluate(system, cell.language, task, recipe.seed) / SCORES_FILE)
        for task in recipe.finetune.tasks
        if task.endswith("-test")
    }
    costs = recipe_costs(recipe) if recipe.adapt.steps else []
    path = layout.changes(system, cell.language)  # of extend alone
    changes = read_json(path) if path.exists() else {}
    return {
        "learned": learned_of(layout, cell.language),
        "new_tokens": recipe.tokenizer.vocab_size,
        "steps": recipe.adapt.steps,
        "eflops": sum(row["executed_eflops"] for row in costs if row["step"] == "adapt"),
        "scores": {task: rows[-1] for task, rows in scores.items()},
        "english": {key: value for key, value in changes.items() if key in OF_ENGLISH},
    }


def curve_of(recipe: Recipe, system: System) -> Row:
    """What a system with a task did: scores by finetuning seed and step, EFLOPs and held-out bits
    by step, and scores in the source language.
    """
    layout = WorkdirLayout(recipe.workdir)
    (task,) = recipe.finetune.tasks
    (target,) = recipe.languages.targets

    def scores(language: str) -> list[Any]:
        scored = recipe.scored_as(system, language)
        seeds = seeds_of_task(recipe, task)
        folders = (layout.evaluate(scored, language, task, seed) for seed in seeds)
        return [read_json(folder / SCORES_FILE) for folder in folders]

    log_file = layout.adapt(system, target) / "run/metrics.jsonl"
    losses = read_losses(log_file, system.name, "adapt", target)
    assert losses is not None
    rows = scores(target)
    return {
        "steps": [row["step"] for row in rows[0]],
        "eflops": [row["eflops"] for row in rows[0]],
        "scores": [[row["score"] for row in of_seed] for of_seed in rows],
        "bits": [nats / log(2) for _, nats in losses["held_out"]],
        "english": [of_seed[-1]["score"] for of_seed in scores(recipe.languages.source)],
    }


def learned_of(layout: WorkdirLayout, language: str) -> dict[str, int]:
    """How many pairs of each file are learned from."""
    corpus = PairCorpus(layout.pairs(language))
    return {text.name: len(text.pairs) for text in corpus.training}


def commit() -> str:
    """The commit of the package that runs."""
    folder = str(Path(ds_minimodel.__file__).parent)
    command = ["git", "-C", folder, "rev-parse", "--short=8", "HEAD"]
    return subprocess.check_output(command, text=True).strip()
