"""SQuAD 1.1 files."""

import copy
import json

import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.tasks.qa import read_squad

CONTEXT = "😀 Die Zeile  Übersicht zeigt alles."
QUESTION = {
    "id": "q1",
    "question": "Was zeigt alles?",
    "answers": [{"text": "Übersicht", "answer_start": 13}, {"text": "Zeile", "answer_start": 6}],
}
FILE = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [QUESTION]}]}]}


def read(folder, content):
    path = folder / "qa.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_squad(path)


def changed(change):
    """FILE after `change(file, paragraph, question, first answer)`."""
    file = copy.deepcopy(FILE)
    paragraph = file["data"][0]["paragraphs"][0]
    change(file, paragraph, paragraph["qas"][0], paragraph["qas"][0]["answers"][0])
    return file


def test_offsets_count_code_points(tmp_path):
    (question,) = read(tmp_path, FILE)
    assert (question.id, question.text, question.context) == ("q1", "Was zeigt alles?", CONTEXT)
    assert question.answers == ("Übersicht", "Zeile") and question.starts == (13, 6)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda f, p, q, a: a.update(answer_start=14),
            r"qa.json: data\[0\].paragraphs\[0\].qas\[0\] \(id q1\).answers\[0\]: character 14 .* begins 'bersicht",
        ),
        (lambda f, p, q, a: a.update(answer_start="13"), "'answer_start' is \"13\", not a whole number"),
        (lambda f, p, q, a: a.update(text=" "), "the answer is empty"),
        (lambda f, p, q, a: q.update(answers=[]), "no answer"),
        (lambda f, p, q, a: q.pop("question"), "no 'question'"),
        (lambda f, p, q, a: p["qas"].append(q), r"qas\[1\]: the id 'q1' comes a second time"),
        (lambda f, p, q, a: p.update(qas="none"), r"data\[0\].paragraphs\[0\].qas: not a list"),
        (lambda f, p, q, a: f.update(data=[]), "qa.json: no questions"),
    ],
)
def test_mistakes_name_their_place(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, changed(change))


def test_a_file_that_is_no_json_is_refused(tmp_path):
    with pytest.raises(UserError, match="qa.json:2: not JSON"):
        read(tmp_path, '{"data":\n [}')
