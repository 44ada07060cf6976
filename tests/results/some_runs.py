"""Runs of a small recipe with made-up scores, as `report` keeps them in run.json."""

from dataclasses import replace

from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.results.run_results import RunResults

from ..recipes import recipe_of

TASKS = {"topic": "classification", "qa": "qa"}
FINAL = {"bl_base": 60.0, "bl_small": 50.0, "minijoint": 58.0, "minipost": 59.0, "multijoint": 59.0}


def score_row(system, task, language, seed, step, eflops, score):
    """A row of scores.json."""
    return dict(system=system, task=task, language=language, seed=seed, step=step, eflops=eflops, score=score)


def run_of(recipe, name=""):
    """A run of a recipe without results."""
    return RunResults(
        name=name,
        recipe=recipe.model_dump(mode="json"),
        data={"base": None},
        tests={},
        scores=[],
        costs=[],
        baselines=[],
        losses=[],
        facts={},
        records={},
    )


def some_run(
    name="first",
    systems=("bl_base", "minijoint"),
    languages=("de", "tr"),
    tasks=("topic",),
    seed=1,
    better=0.0,
    data=None,
    source="en",
    **changes,
):
    """A run whose scores rise from 30 at step 0 to FINAL + `better` after the last step, in two finetuning seeds.

    changes: sections of the recipe. data: what differs in it from {"text of de": "1", …}.
    """
    recipe = _recipe(name, list(systems), source, list(languages), tasks, seed, changes)
    costs = recipe_costs(recipe)
    spent = {row["system"]: row["formula_eflops"] for row in costs if row["step"] == "adapt"}
    scores = [
        row | ({"exact_match": row["score"] - 20} if row["task"] == "qa" else {})
        for system in systems
        for task in tasks
        for row in _rows(system, task, languages, seed, better, spent)
    ]
    scores += [score_row(system, task, source, seed, 0, 0.0, 80.0) for system in systems for task in tasks]
    text = {f"text of {language}": "1" for language in (source, *languages)}
    run = run_of(recipe, name)
    return replace(
        run,
        data=run.data | text | (data or {}),
        tests={
            task: {
                "metric": "F1" if task == "qa" else "accuracy",
                "files": {language: ["test"] for language in languages},
            }
            for task in tasks
        },
        scores=scores,
        costs=costs,
        baselines=[{"baseline": "majority", "task": task, "language": languages[0], "score": 33.3} for task in tasks],
        losses=[
            {
                "system": system,
                "stage": "adapt",
                "language": language,
                "final": 4.0,
                "curve": [[0.0, 6.0], [spent[system], 4.0]],
                "held_out": [[0, 0.0, 2.0], [5, spent[system] / 2, 1.5], [10, spent[system], 1.6]],
                "seconds": 1200.0,
                "usual_seconds": 600.0 if system == "minijoint" else 1500.0,
            }
            for system in systems
            for language in languages
        ],
        facts={"Model": "4 layers"},
        development=[
            {"system": system, "task": task, "seed": seed, "curve": [[8, 70.0], [16, 75.0]]}
            for system in systems
            for task in tasks
        ],
    )


def _rows(system, task, languages, seed, better, spent):
    for language in languages:
        for number in (0, 1):
            for step in (0, 5, 10):
                score = 30 + (FINAL[system] + better - 30) * step / 10 + number
                yield score_row(system, task, language, seed + number, step, spent[system] * step / 10, score)


def _recipe(name, systems, source, languages, tasks, seed, changes):
    files = {language: f"{language}.txt" for language in (source, *languages)}
    step = {"steps": 10, "batch_size": 8, "seq_length": 32, "warmup_steps": 1}
    sections = {
        "tokenizer": {"vocab_size": 1000},
        "model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "ffn_size": 256, "max_positions": 512},
        "mini": {"depth": 2, "new_layers": 1, "depths": [2, 4]},
        "pretrain": step,
        "build_mini": step,
        "adapt": step,
        "data": {"text": files},
        "finetune": {
            "seeds": 2,
            "tasks": {
                task: {"kind": TASKS[task], "train": "train", "test": dict.fromkeys(languages, "test")}
                for task in tasks
            },
        },
    }
    for section, values in changes.items():
        sections[section] = sections[section] | values
    return recipe_of(systems, languages, source, workdir=f"runs/{name}", seed=seed, **sections)
