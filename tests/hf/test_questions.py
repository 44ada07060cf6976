"""Questions with known answers: what counts as right, and how the set is drawn."""

import re

import pytest

from ds_minimodel.extend.questions import (
    COUNT,
    TABLES,
    Question,
    begins_alike,
    question_set,
    spoken,
)
from ds_minimodel.report.kept import loops

CAPITAL = Question("What is the capital of France?", ("Paris",), ("Rome", "Bern"))
MONTH = Question("Which month comes after March?", ("April",), ("January", "March", "May"))
SUM = Question("What is 7 plus 5?", ("12", "twelve"), ("2", "5", "7", "57", "120"))
ASKED = {own.text: own for own in sum(question_set("en", 0, 10_000).halves, [])}
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
        (ASKED["What is 6 times 8?"], "6 times 8 is forty-eight.", True),
        (ASKED["How many days are in April?"], "thirty-three", False),
        (ASKED["How many grams are in a kilogram?"], "1 kilogram is one thousand grams.", True),
        (OPPOSITE, "The opposite of 'hot' is 'Cool'.", True),
        (OPPOSITE, "It is colder.", False),
    ],
)
def test_an_answer_is_right_where_the_first_one_named_is(question, said, is_right):
    assert question.is_right(said) == is_right


@pytest.mark.parametrize("language", TABLES)
def test_the_set_is_drawn_by_a_seed_in_halves(language):
    first, second = (own := question_set(language, 1)).halves
    assert own == question_set(language, 1) != question_set(language, 2)
    assert COUNT >= 300 and len(first) == len(second) == COUNT // 2
    assert len({own.text for own in first + second}) == COUNT
    assert len(question_set(language, 1, 20).halves[0]) == 10 and len(set(own.instructions)) == 20


def test_questions_are_english_where_a_language_has_none():
    assert question_set("xx") == question_set("en") != question_set("de")


@pytest.mark.parametrize("language", TABLES)
def test_every_question_takes_its_answers_and_gives_none_away(language):
    for question in sum(question_set(language, 3, 10_000).halves, []):
        assert not any(
            re.search(rf"(?i)(?<!\w){re.escape(own)}(?!\w)", question.text)
            for own in question.answers
        )
        assert not question.is_right(question.text) and not question.is_right(
            f"{question.text} I do not know."
        )
        for answer in question.answers:
            assert question.is_right(f"{question.text} It is {answer}."), question


def test_openings_and_loops():
    assert begins_alike("The capital of France is Paris.", "The capital of France is Rome.")
    assert not begins_alike("The capital of France", "the capital of France is")
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
    said = (
        "Die Hauptstadt von Frankreich ist Paris.",
        "The capital of France is Paris.",
        "Paris ist da.",
    )  # too short
    assert [*map(spoken("de", "en"), said)] == [True, False, False]
    assert [*map(spoken("en", "de"), said)] == [False, True, False]
    assert not spoken("fr", "en")("Hlavní město Francie je Paříž, a Německa je Berlín.")
    assert spoken("en", "en") is None and spoken("xx", "en") is None
