"""Tables, curves and costs of all that was evaluated, in one run or in several -> one page."""

from pathlib import Path

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import read_json, sha256_of_json
from ds_minimodel.jobs import record_of
from ds_minimodel.recipe.costs import recipe_costs
from ds_minimodel.results.losses import read_losses
from ds_minimodel.results.page import write_report
from ds_minimodel.results.run_results import RunResults, read_run_results
from ds_minimodel.steps.baselines import jobs  # noqa: F401
from ds_minimodel.steps.task_data import task_inputs

METRICS = {"classification": "accuracy", "pair": "accuracy", "qa": "F1"}


def write(recipe, layout, jobs):
    """Write the report of one run and return its folder. jobs: all jobs that it is made from, complete."""
    write_report(layout.report(), [_run(recipe, layout, jobs)])
    return layout.report()


def write_joint(layout, others):
    """Write the report over the run in `layout`, which has its own report, and those in `others`; its folder.

    others: workdirs, each as RUN or LABEL=RUN. UserError where one is not finished, stale, or does not
    compare.
    """
    runs = [read_run_results(layout.root, layout.root.name)]
    for text in others:
        label, equals, workdir = text.partition("=")
        runs.append(read_run_results(workdir, label) if equals else read_run_results(text, Path(text).name))
    write_report(layout.joint_report(), runs)
    return layout.joint_report()


def _run(recipe, layout, jobs):
    scores, references = [], []
    for task in recipe.finetune.tasks:
        references += read_json(layout.baselines(task) / "baselines.json")
    for system in recipe.chosen_systems:
        for task in recipe.finetune.tasks:
            path = layout.evaluate(system, task) / "scores.json"
            if not path.is_file():
                raise UserError(f"{path}: missing; run evaluate first, or `ds-minimodel run`")
            scores += read_json(path)
    paths = [record_of(job.folder) for job in jobs]
    records = {str(path.relative_to(layout.root)): sha256_of_json(read_json(path)) for path in paths}
    return RunResults(
        layout.root.name,
        recipe.model_dump(mode="json"),
        _data(recipe, layout),
        _tests(recipe),
        scores,
        recipe_costs(recipe),
        references,
        _losses(recipe, layout),
        _facts(recipe, layout),
        records,
    )


def _data(recipe, layout):
    """Identities of the base, of the text that each language's tokens were made from, of the training data."""
    found = {"base": read_json(record_of(layout.pretrain(recipe.chosen_systems[0])))["inputs"].get("base")}
    for language in recipe.languages_of_text:
        inputs = read_json(record_of(layout.tokens(language)))["inputs"]
        found[f"text of {language}"] = sha256_of_json({**inputs, "parents": None})[:16]
    for name, task in recipe.finetune.tasks.items():
        found[f"training data of {name}"] = task_inputs(recipe, name, [task.train])["files"]
    return found


def _tests(recipe):
    """For each task what its scores are, and the identity of each language's test data."""
    found = {}
    for name, task in recipe.finetune.tasks.items():
        by_mlqa = task.kind == "qa" and task.metric == "mlqa"
        found[name] = {
            "metric": METRICS[task.kind] + (" by MLQA's rules" if by_mlqa else ""),
            "files": {language: task_inputs(recipe, name, [path])["files"] for language, path in task.test.items()},
        }
    return found


def _facts(recipe, layout):
    first = layout.adapt(recipe.chosen_systems[0], recipe.languages.targets[0])
    model, run = recipe.model, read_json(first / "run" / "run.json")
    origin = (
        {}
        if recipe.base is None
        else {"Body": f"taken over from {Path(recipe.base).name}; what its pretraining took is not known"}
    )
    return {
        "Languages": f"{recipe.languages.source} to {', '.join(recipe.languages.targets)}",
        "Model": f"{model.num_layers} layers, hidden size {model.hidden_size}, vocabulary "
        f"{recipe.tokenizer.vocab_size:,}; mini-models of depth {recipe.mini.depth}",
        "Step 2": f"{recipe.adapt.steps:,} updates of {recipe.adapt.batch_size} x {recipe.adapt.seq_length} tokens",
        "Run": f"{recipe.finetune.seeds} finetuning seeds; adapted on {run['world_size']} rank(s), "
        f"ZeRO {run['zero_stage']}, {run['precision']}, {run['device']}, torch {run['torch']}",
        **origin,
    }


def _losses(recipe, layout):
    source, rows = recipe.languages.source, []
    for system in recipe.chosen_systems:
        runs = [("pretrain", layout.pretrain(system), source)]
        runs += [("build-mini", layout.build_mini(system), source)] if system.builds_mini else []
        runs += [("adapt", layout.adapt(system, language), language) for language in recipe.languages.targets]
        rows += [
            read_losses(folder / "run" / "metrics.jsonl", system.name, stage, language)
            for stage, folder, language in runs
        ]
    return [row for row in rows if row]
