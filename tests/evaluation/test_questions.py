"""Questions with known answers: what counts as right, and how the set is drawn."""

import re

import pytest

from ds_minimodel.evaluation.questions import (
    MAX_QUESTIONS,
    TABLES,
    Question,
    language_test,
    loops,
    question_set,
)

CAPITAL = Question("What is the capital of France?", ("Paris",), ("Rome", "Bern"))
MONTH = Question("Which month comes after March?", ("April",), ("January", "March", "May"))
SUM = Question("What is 7 plus 5?", ("12", "twelve"), ("2", "5", "7", "57", "120"))
ASKED = {question.text: question for question in question_set("en", 10_000)[2]}
OPPOSITE = Question('What is the opposite of "hot"?', ("cold", "cool"))


@pytest.mark.parametrize(
    "question, said, is_right",
    [
        (CAPITAL, "The capital of France is Paris.", True),
        (CAPITAL, '"Paris", of course', True),
        (CAPITAL, "In comparison, the Parisian suburbs are large.", False),
        (CAPITAL, "Rome, not Paris", False),
        (CAPITAL, "", False),
        (MONTH, "After March comes April, then May.", True),
        (MONTH, "January, February, March, April, May", False),
        (SUM, "7 plus 5 is 12.", True),
        (SUM, "Twelve!", True),
        (SUM, "7 + 5 = 120", False),
        (SUM, "12.5", False),
        (SUM, "-12", False),
        (ASKED["How many days are in April?"], "30, thirty", True),
        (Question("?", ("twenty",)), "twenty-five", False),
        (ASKED["How many days are in April?"], "thirty-three", False),
        (ASKED["How many grams are in a kilogram?"], "1 kilogram is one thousand grams.", True),
        (OPPOSITE, "The opposite of 'hot' is 'Cool'.", True),
        (OPPOSITE, "It is colder.", False),
    ],
)
def test_an_answer_is_right_where_the_first_one_named_is(question, said, is_right):
    assert question.is_right(said) == is_right


@pytest.mark.parametrize("language", TABLES)
def test_the_set_is_drawn_by_a_seed(language):
    code, frame, questions = question_set(language, seed=1)
    assert questions == question_set(language, seed=1)[2] != question_set(language, seed=2)[2]
    assert len({question.text for question in questions}) == MAX_QUESTIONS == 250
    assert code == language
    assert len(frame) == 2
    assert question_set(language, 20, 1)[2] == questions[:20]


def test_questions_are_english_where_a_language_has_none():
    assert question_set("xx") == question_set("en") != question_set("de")


@pytest.mark.parametrize("language", TABLES)
def test_every_question_takes_its_answers_and_gives_none_away(language):
    for question in question_set(language, 10_000)[2]:
        assert not any(
            re.search(rf"(?i)(?<!\w){re.escape(answer)}(?!\w)", question.text)
            for answer in question.answers
        )
        assert not question.is_right(question.text)
        assert not question.is_right(f"{question.text} I do not know.")
        for answer in question.answers:
            assert question.is_right(f"{question.text} It is {answer}."), question


def test_what_loops():
    for said in (
        "La France, la France, la France",
        "-Fantasy-Fantasy-Fantasy",
        "the sum the sum the sum of",
    ):
        assert loops(said), said
    for said in (
        "1000000000000000",
        "The cat, the dog and the cow.",
        "........................",
        "ha ha ha",
    ):
        assert not loops(said), said


def test_answers_in_the_language_that_was_added():
    # The last one is too short for its language to be told.
    said = (
        "Die Hauptstadt von Frankreich ist Paris.",
        "The capital of France is Paris.",
        "Paris ist da.",
    )
    assert [*map(language_test("de", "en"), said)] == [True, False, False]
    assert [*map(language_test("en", "de"), said)] == [False, True, False]
    assert not language_test("fr", "en")("Hlavní město Francie je Paříž, a Německa je Berlín.")
    assert language_test("en", "en") is None
    assert language_test("xx", "en") is None
