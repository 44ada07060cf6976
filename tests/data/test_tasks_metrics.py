"""Official metrics on cases worked out by hand."""

import pytest

from ds_minimodel.data.tasks import Question, score_classification, score_qa
from ds_minimodel.data.tasks.metrics import answer_words


def question(name, *answers):
    return Question(name, "?", " ".join(answers), answers, (0,) * len(answers))


def score(predicted, *answers, language=None):
    scores = score_qa({"q": predicted}, [question("q", *answers)], language)
    return scores["exact_match"], pytest.approx(scores["f1"], abs=1e-9)


def test_accuracy():
    assert score_classification([1, 0, 2, 2], [1, 1, 2, 0]) == {"accuracy": 50.0}


def test_squad_ignores_case_punctuation_articles_and_space():
    assert score("The  Eiffel-Tower!", "eiffeltower") == (100.0, 100.0)
    assert score("an apple", "the Apple.") == (100.0, 100.0)
    assert score("theatre", "atre") == (0.0, 0.0)


def test_f1_counts_common_words_with_their_number():
    # 2 of 3 words of the prediction (york once), 2 of 4 of the answer: 2 · 2 / (3 + 4)
    assert score("new york york", "new york city state") == (0.0, 100 * 4 / 7)


def test_the_best_of_several_answers_counts():
    assert score("in 1990", "1989", "1990", "in 1990") == (100.0, 100.0)
    assert score("May 1990", "1989", "1990") == (0.0, 100 * 2 / 3)


def test_unanswered_and_empty_answers_score_nothing():
    questions = [question("a", "x"), question("b", "y"), question("c", "z")]
    assert score_qa({"a": "x", "b": ""}, questions) == {"exact_match": pytest.approx(100 / 3),
                                                        "f1": pytest.approx(100 / 3)}


def test_squad_keeps_punctuation_outside_ascii_and_mlqa_does_not():
    assert score("“Paris”", "Paris")[0] == 0.0
    assert score("“Paris”", "Paris", language="en")[0] == 100.0
    assert score("北京。", "北京", language="zh")[0] == 100.0
    assert score("¿el sol?", "sol", language="es")[0] == 100.0


def test_articles_by_language():
    assert answer_words("Die Größe des Hauses", "de") == ["größe", "hauses"]
    assert answer_words("las casas del rey", "es") == ["casas", "del", "rey"]
    assert answer_words("cái nhà của tôi", "vi") == ["nhà", "tôi"]
    assert answer_words("الكتاب", "ar") == ["كتاب"]
    assert answer_words("एक घर", "hi") == ["एक", "घर"]
    assert answer_words("the die el", "tr") == ["the", "die", "el"]


def test_chinese_is_compared_by_character_and_other_words_whole():
    assert answer_words("1990年,在北京(New York)", "zh") == ["1990", "年", "在", "北", "京", "new", "york"]
    # one of the two characters is right: P 1/2, R 1/2
    assert score("北京", "南京", language="zh") == (0.0, 50.0)
    assert score("北京市", "北京", language="zh") == (0.0, 80.0)
    assert score("北京市", "北京") == (0.0, 0.0)       # cut at spaces, the whole is one wrong word
