"""Simple references beside the systems, for each task and language but the source (analysis/baselines.py)."""

from ds_minimodel import tasks
from ds_minimodel.common.files import atomic_folder, write_json, write_manifest
from ds_minimodel.jobs import Job
from ds_minimodel.steps.task_data import labels_of, read_records, task_inputs
from ds_minimodel.tasks import references


def jobs(recipe, layout):
    found = []
    for name, task in recipe.finetune.tasks.items():
        inputs = {
            "task": task_inputs(recipe, name, [task.train, *task.test.values()]),
            "languages": [recipe.languages.source, *task.test],
        }
        found.append(Job(layout.baselines(name), inputs, (), lambda _, name=name: _score(recipe, layout, name)))
    return found


def _score(recipe, layout, name):
    task, source = recipe.finetune.tasks[name], recipe.languages.source
    tests = {language: path for language, path in task.test.items() if language != source}
    scores = _questions(task, tests) if task.kind == "qa" else _labelled(task, tests, source)
    rows = [
        {"baseline": baseline, "task": name, "language": language, "score": score}
        for baseline, by_language in scores.items()
        for language, score in (by_language or {}).items()
    ]
    with atomic_folder(layout.baselines(name)) as folder:
        write_json(folder / "baselines.json", rows)
        write_manifest(folder, kind="baselines")


def _labelled(task, tests, source):
    """{baseline: {language: accuracy}} of a classification or pair task; None where scikit-learn is missing."""
    labels = labels_of(task, source)
    train = read_records(task, task.train, source, labels)
    by_language = {language: read_records(task, path, language, labels) for language, path in tests.items()}
    labelled = {language: (_rows(records), records.targets.tolist()) for language, records in by_language.items()}
    texts = {language: (list(map(" ".join, pairs)), targets) for language, (pairs, targets) in labelled.items()}
    found = {
        "majority": references.majority_accuracies(train.targets.tolist(), labelled),
        "TF-IDF": references.tfidf_accuracies(list(map(" ".join, _rows(train))), train.targets.tolist(), texts),
    }
    if task.kind == "pair":
        found["overlap"] = references.overlap_accuracies(_rows(train), train.targets.tolist(), labelled)
    return found


def _rows(records):
    return list(zip(*records.texts, strict=True))


def _questions(task, tests):
    """{"overlap": {language: F1}} of answering with the sentence most like the question."""
    scores = {}
    for language, path in tests.items():
        questions = tasks.read_squad(path)
        rules = language if task.metric == "mlqa" else None
        scores[language] = tasks.score_qa(references.overlap_answers(questions), questions, rules)["f1"]
    return {"overlap": scores}
