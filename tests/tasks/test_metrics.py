"""Official metrics: on cases worked out by hand, and against the published scorers' rules written out."""

import random
import re
import string
import sys
import unicodedata

import pytest

from ds_minimodel.tasks.metrics import accuracy, score_qa
from ds_minimodel.tasks.qa import Question


def question(name, *answers):
    return Question(name, "?", " ".join(answers), answers, (0,) * len(answers))


def score(predicted, *answers, language=None):
    scores = score_qa({"q": predicted}, [question("q", *answers)], language)
    return scores["exact_match"], pytest.approx(scores["f1"], abs=1e-9)


def test_accuracy():
    assert accuracy([1, 0, 2, 2], [1, 1, 2, 0]) == 50.0


def test_unanswered_and_empty_answers_score_nothing():
    questions = [question("a", "x"), question("b", "y"), question("c", "z")]
    assert score_qa({"a": "x", "b": ""}, questions) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 / 3),
    }


# MLQA's rules as its scorer states them, step by step (mlqa_evaluation_v1.py), in a form of their own.
PUNCTUATION = {chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code))[0] == "P"}
PUNCTUATION |= set(string.punctuation)
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "hi": None,
    "zh": None,
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "ar": r"\sال^|ال",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
}


def mixed_segments(text):
    """Chinese characters and punctuation stand alone, what is between them is cut at spaces."""
    segments, between = [], ""
    for character in text:
        if "\u4e00" <= character <= "\u9fa5" or character in PUNCTUATION:
            segments += [*between.split(), character]
            between = ""
        else:
            between += character
    return segments + between.split()


def mlqa_normal_form(answer, language):
    bare = "".join(character for character in answer.lower() if character not in PUNCTUATION)
    if ARTICLES[language]:
        bare = re.sub(ARTICLES[language], " ", bare)
    return " ".join(mixed_segments(bare) if language == "zh" else bare.split())


def word_f1(predicted, answer):
    left, same = list(answer), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            same += 1
    return 200 * same / (len(predicted) + len(answer)) if same else 0


WORDS = (
    "the a an theatre el la las unos der die das dem Haus là của nhà cái الكتاب ال كتاب و एक घर। 北京 市 1990年 "
    "中国A股 New-York “Paris” ¿qué? 3,5 ． 、 … § $5 <b> \u200bx \u3000 \u00a0 Ärger STRASSE ß İ 㐀 龥 龦 々"
).split(" ")


def random_text(draw):
    return draw.choice(["", " "]).join(draw.choices(WORDS, k=draw.randint(0, 4)))


@pytest.mark.parametrize("language", sorted(ARTICLES))
def test_mlqa_scores_follow_its_rules_in_every_language(language):
    draw = random.Random(language)
    for _ in range(300):
        predicted, *answers = (random_text(draw) for _ in range(3))
        scores = score_qa({"q": predicted}, [question("q", *answers)], language)
        normal = mlqa_normal_form(predicted, language)
        accepted = [mlqa_normal_form(text, language) for text in answers]
        assert scores["exact_match"] == 100.0 * (normal in accepted)
        assert scores["f1"] == pytest.approx(max(word_f1(normal.split(), text.split()) for text in accepted))


def squad_normal_form(answer):
    """SQuAD 1.1's rules (evaluate-v1.1.py): only ASCII's punctuation goes, then English articles."""
    bare = answer.lower().translate({ord(character): None for character in string.punctuation})
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def test_squad_scores_follow_its_rules():
    draw = random.Random(0)
    for _ in range(300):
        predicted, answer = random_text(draw), random_text(draw)
        normal = [squad_normal_form(text) for text in (predicted, answer)]
        f1 = word_f1(*(text.split() for text in normal))
        assert score(predicted, answer) == (100.0 * (normal[0] == normal[1]), pytest.approx(f1))
