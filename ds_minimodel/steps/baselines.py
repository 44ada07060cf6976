"""Reference scores without a language model, for each task and language but the source."""

from ds_minimodel.common.files import atomic_folder, write_json, write_manifest
from ds_minimodel.jobs import Job, Layout
from ds_minimodel.recipe.schema import Recipe
from ds_minimodel.steps.task_data import task_inputs
from ds_minimodel.tasks import KINDS


def jobs(recipe: Recipe, layout: Layout) -> list[Job]:
    """Jobs that score each task's references."""
    found: list[Job] = []
    for name, task in recipe.finetune.tasks.items():
        inputs = {
            "task": task_inputs(recipe, name, [task.train, *task.test.values()]),
            "languages": [recipe.languages.source, *task.test],
        }
        found.append(Job(layout.baselines(name), inputs, (), lambda _, name=name: _score(recipe, layout, name)))
    return found


def _score(recipe: Recipe, layout: Layout, name: str) -> None:
    task, source = recipe.finetune.tasks[name], recipe.languages.source
    tests = {language: path for language, path in task.test.items() if language != source}
    scores = KINDS[task.kind].references(task, tests, source)
    rows = [
        {"baseline": baseline, "task": name, "language": language, "score": score}
        for baseline, by_language in scores.items()
        for language, score in (by_language or {}).items()
    ]
    with atomic_folder(layout.baselines(name)) as folder:
        write_json(folder / "baselines.json", rows)
        write_manifest(folder, kind="baselines")
