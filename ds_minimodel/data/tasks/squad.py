"""Questions with their contexts and answers, read from SQuAD 1.1 JSON (MLQA and XQuAD share the form)."""

import json
from dataclasses import dataclass

from ds_minimodel.data.tasks.records import read_text, text_field
from ds_minimodel.errors import UserError

_FORM = "SQuAD 1.1 has data > paragraphs > qas > answers"


@dataclass(frozen=True)
class Question:
    """starts: first character of each answer in `context`, in code points."""
    id: str
    text: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


def read_squad(path):
    """All questions of a file, in its order.

    Raises UserError, naming the place in the file, for a missing or damaged file, a question without
    an answer, an answer that is not where its offset says, and an id that comes twice.
    """
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg}); {_FORM}") from None
    questions, ids = [], set()
    for article, where in _items(content, "data", f"{path}: "):
        for paragraph, where in _items(article, "paragraphs", f"{where}."):
            context = text_field(paragraph, "context", where)
            for entry, where in _items(paragraph, "qas", f"{where}."):
                question = _question(entry, context, where)
                if question.id in ids:
                    raise UserError(f"{where}: the id '{question.id}' comes a second time")
                ids.add(question.id)
                questions.append(question)
    if not questions:
        raise UserError(f"{path}: no questions; a task needs some")
    return questions


def _items(parent, key, where):
    """(item, its place) of the list `key` of a JSON object."""
    items = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{where}{key}: not a list of objects; {_FORM}")
    return [(item, f"{where}{key}[{number}]") for number, item in enumerate(items)]


def _question(entry, context, where):
    name = text_field(entry, "id", where)
    where = f"{where} (id {name})"
    answers, starts = [], []
    for answer, place in _items(entry, "answers", f"{where}."):
        text, start = text_field(answer, "text", place), answer.get("answer_start")
        if not text.strip():
            raise UserError(f"{place}: the answer is empty")
        if type(start) is not int:
            raise UserError(f"{place}: 'answer_start' is {json.dumps(start)[:40]}, not a whole number")
        if start < 0 or context[start:start + len(text)] != text:
            raise UserError(f"{place}: character {start} of the context begins "
                            f"{context[max(start, 0):][:30]!r}, not with the answer {text[:30]!r}; "
                            "answer_start counts characters (code points) from 0")
        answers.append(text)
        starts.append(start)
    if not answers:
        raise UserError(f"{where}: no answer; {_FORM}, and every question has an answer")
    return Question(name, text_field(entry, "question", where), context, tuple(answers), tuple(starts))
