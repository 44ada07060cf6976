"""Tasks of a recipe: records read and encoded, and the module that solves them."""

from ds_minimodel import tasks
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.files import sha256_of_file
from ds_minimodel.model.heads import SequenceClassifier, SpanExtractor


def task_inputs(recipe, name, files):
    """What decides the data of a task, for a job's record. UserError where a file is missing."""
    task = recipe.finetune.tasks[name]
    try:
        contents = {path: sha256_of_file(path)[:16] for path in files}  # each file once: XNLI's serves 15 languages
    except OSError as error:
        raise UserError(
            f"finetune.tasks.{name}: {error.filename}: {error.strerror}; check the path in the recipe"
        ) from None
    settings = {key: recipe.finetune.of(name, key) for key in ("epochs", "batch_size", "lr", "max_length")}
    return {**task.model_dump(exclude={"train", "test"}), **settings, "files": [contents[path] for path in files]}


def read_records(task, path, language, labels=None):
    """Records of one file of a classification or pair task; labels: None for those of the file."""
    return tasks.read_table(path, tasks.forms_of(task.kind, task.columns), labels, language)


def labels_of(task, source):
    """Labels of a classification or pair task, in id order: as given, else those of the training file.

    source: language of the training file.
    """
    return task.labels or list(read_records(task, task.train, source).labels)


def read_examples(recipe, name, path, language, tokenizer, labels):
    """Encoded data of one file of a task: (Examples or Windows, Records or Questions)."""
    task, length = recipe.finetune.tasks[name], recipe.finetune.of(name, "max_length")
    if task.kind == "qa":
        questions = tasks.read_squad(path)
        return tasks.encode_questions(tokenizer, questions, length, task.question_length, task.stride), questions
    records = read_records(task, path, language, labels)
    return tasks.encode_table(tokenizer, records, length), records


def task_module(kind, config, vocab_size, labels):
    """The model of a task with a fresh head over a body of `config`, which has no masked-LM heads."""
    if kind == "qa":
        return SpanExtractor(config, vocab_size)
    return SequenceClassifier(config, vocab_size, len(labels))
