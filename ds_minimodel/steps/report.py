"""Tables, curves and costs of all that was evaluated -> one page."""

import statistics
from pathlib import Path

from ds_minimodel.analysis.losses import read_losses
from ds_minimodel.analysis.page import write_report
from ds_minimodel.errors import UserError
from ds_minimodel.files import read_json
from ds_minimodel.steps.costs import costs
from ds_minimodel.steps.systems import BODY_OF


def write(recipe, layout):
    """Write the report folder and return its path. UserError where a score is missing."""
    rows = []
    for system in recipe.systems:
        for task in recipe.finetune.tasks:
            path = layout.evaluate(system, task) / "scores.json"
            if not path.is_file():
                raise UserError(f"{path}: missing; run evaluate first, or `ds-minimodel run`")
            rows += read_json(path)
    source = recipe.languages.source
    scores = [row for row in rows if row["language"] != source]
    facts = _facts(recipe, layout) | _source_scores(source, [row for row in rows if row["language"] == source])
    baselines = read_json(layout.baselines() / "baselines.json")
    write_report(layout.report(), scores, costs(recipe), baselines, _losses(recipe, layout), facts)
    return layout.report()


def _facts(recipe, layout):
    first = layout.adapt(recipe.systems[0], recipe.languages.targets[0])
    model, run = recipe.model, read_json(first / "run" / "run.json")
    origin = {} if recipe.base is None else {
        "Body": f"taken over from {Path(recipe.base).name}; what its pretraining took is not known"}
    return {"Languages": f"{recipe.languages.source} to {', '.join(recipe.languages.targets)}",
            "Model": f"{model.num_layers} layers, hidden size {model.hidden_size}, vocabulary "
                     f"{recipe.tokenizer.vocab_size:,}; mini-models of depth {recipe.mini.depth}",
            "Step 2": f"{recipe.adapt.steps:,} updates of {recipe.adapt.batch_size} x {recipe.adapt.seq_length} tokens",
            "Run": f"{recipe.finetune.seeds} finetuning seeds; adapted on {run['world_size']} rank(s), ZeRO "
                   f"{run['zero_stage']}, {run['precision']}, {run['device']}, torch {run['torch']}",
            **origin}


def _source_scores(source, rows):
    """{label: text}: each task's score in the source language, by system (paper, section 5.3)."""
    found = {}
    for row in rows:
        found.setdefault(row["task"], {}).setdefault(row["system"], []).append(row["score"])
    return {f"{task} in {source}": ", ".join(f"{system} {statistics.fmean(scores):.1f}"
                                             for system, scores in by_system.items())
            for task, by_system in found.items()}


def _losses(recipe, layout):
    source, rows = recipe.languages.source, []
    for system in recipe.systems:
        runs = [("pretrain", layout.pretrain(BODY_OF[system]), source)]
        runs += [("build-mini", layout.build_mini(), source)] if system == "minipost" else []
        runs += [("adapt", layout.adapt(system, language), language) for language in recipe.languages.targets]
        for stage, folder, language in runs:
            path = Path(folder) / "run" / "metrics.jsonl"
            if path.is_file():
                rows += read_losses(path, system, stage, language)
    return rows
