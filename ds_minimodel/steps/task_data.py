"""What job records hold of a recipe's tasks."""

from collections.abc import Sequence

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.recipe.schema import Recipe


def task_inputs(recipe: Recipe, name: str, files: Sequence[str]) -> dict[str, object]:
    """What decides the data of a task, for a job's record. UserError where a file is missing."""
    task = recipe.finetune.tasks[name]
    try:
        contents = {path: sha256_of_file(path)[:16] for path in files}  # each file once: XNLI's serves 15 languages
    except OSError as error:
        raise UserError(
            f"finetune.tasks.{name}: {error.filename}: {error.strerror}; check the path in the recipe"
        ) from None
    settings = {key: recipe.finetune.of(name, key) for key in ("epochs", "batch_size", "lr", "max_length")}
    return {**task.settings(), **settings, "files": [contents[path] for path in files]}
