"""Tasks of a recipe: records read and encoded, and the module that solves them."""

from ds_minimodel.data import tasks
from ds_minimodel.errors import UserError
from ds_minimodel.files import sha256_of_file
from ds_minimodel.model.heads import SequenceClassifier, SpanExtractor

COLUMNS = {"classification": tasks.SENTENCE, "pair": tasks.PAIR}


def task_inputs(recipe, name, files):
    """What decides the data of a task, for a job's record. UserError where a file is missing."""
    task = recipe.finetune.tasks[name]
    try:
        contents = [sha256_of_file(path)[:16] for path in files]
    except OSError as error:
        raise UserError(f"finetune.tasks.{name}: {error.filename}: {error.strerror}; check the path in the "
                        "recipe") from None
    settings = {key: recipe.finetune.of(name, key) for key in ("epochs", "batch_size", "lr", "max_length")}
    return {**task.model_dump(exclude={"train", "test"}), **settings, "files": contents}


def labels_of(task):
    """Labels of a classification or pair task, in id order: as given, else those of the training file."""
    return task.labels or list(tasks.read_table(task.train, COLUMNS[task.kind]).labels)


def read_examples(recipe, name, path, tokenizer, labels):
    """Encoded data of one file of a task: (Examples or Windows, Records or Questions)."""
    task, length = recipe.finetune.tasks[name], recipe.finetune.of(name, "max_length")
    if task.kind == "qa":
        questions = tasks.read_squad(path)
        return tasks.encode_questions(tokenizer, questions, length, task.question_length, task.stride), questions
    records = tasks.read_table(path, COLUMNS[task.kind], labels)
    return tasks.encode_table(tokenizer, records, length), records


def task_module(kind, config, vocab_size, labels):
    """The model of a task with a fresh head over a body of `config`, which has no masked-LM heads."""
    if kind == "qa":
        return SpanExtractor(config, vocab_size)
    return SequenceClassifier(config, vocab_size, len(labels))
