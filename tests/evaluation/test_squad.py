"""SQuAD 1.1 files."""

import copy
import json

import pytest

from ds_minimodel.evaluation.qa import read_squad
from tests.helpers.refusals import refuses

CONTEXT = "😀 Die Zeile  Übersicht zeigt alles."
QUESTION = {
    "id": "q1",
    "question": "Was zeigt alles?",
    "answers": [{"text": "Übersicht", "answer_start": 13}, {"text": "Zeile", "answer_start": 6}],
}
FILE = {
    "version": "1.1",
    "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [QUESTION]}]}],
}


def read(folder, content):
    path = folder / "qa.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_squad(path)


def changed(change):
    """FILE after `change(file, paragraph, question, first answer)`."""
    file = copy.deepcopy(FILE)
    paragraph = file["data"][0]["paragraphs"][0]
    change(file, paragraph, paragraph["qas"][0], paragraph["qas"][0]["answers"][0])
    return file


def test_offsets_count_code_points(tmp_path):
    (question,) = read(tmp_path, FILE)
    assert question.id == "q1"
    assert question.text == "Was zeigt alles?"
    assert question.context == CONTEXT
    assert question.answers == ("Übersicht", "Zeile")
    assert question.starts == (13, 6)


IN_FILE = "qa.json: data.0.paragraphs.0.qas"


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda f, p, q, a: a.update(answer_start=14),
            "qa.json: the question of id q1: character 14 .* begins 'bersi",
        ),
        (
            lambda f, p, q, a: a.update(answer_start="13"),
            f"{IN_FILE}.0.answers.0.answer_start: .* integer; SQuAD 1.1",
        ),
        (lambda f, p, q, a: a.update(text=" "), f"{IN_FILE}.0.answers.0.text: "),
        (lambda f, p, q, a: p["qas"].append(q), "the question of id q1 comes a second time"),
        (lambda f, p, q, a: f.update(data=[]), "qa.json: no questions"),
    ],
)
def test_mistakes_name_their_place(tmp_path, change, message):
    with refuses(message):
        read(tmp_path, changed(change))


def test_a_file_that_is_no_json_is_refused(tmp_path):
    with refuses("qa.json: not a readable JSON file .*line 2"):
        read(tmp_path, '{"data":\n [}')
