"""Short questions with known answers, made of tables, and whether what a model says to one is
right.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from py3langid.langid import MODEL_FILE, LanguageIdentifier
from ruamel.yaml import YAML

from ds_minimodel.common.files import sha256_of_file

TABLES = {
    path.suffixes[0][1:]: path for path in Path(__file__).parent.glob("questions.*.yaml")
}  # by language
COUNT, SUMS = 494, 90  # questions of a set, of which so many at most are sums
_NUMBERS = tuple(str(number) for number in range(145))
# Raised where another answer counts as right, or another text as one that loops or is in a language
RULES = 2
_OPENING = 5  # words
_TOLD, _SURE = 20, 10.0  # bytes of a text whose language can be told, and by how many nats more


@dataclass(frozen=True)
class Question:
    """A question, its right answers, and wrong ones, which count where they are named before a
    right one.
    """

    text: str
    answers: tuple[str, ...]
    others: tuple[str, ...] = ()

    @cached_property
    def _named(self) -> re.Pattern[str]:
        others = [name for name in self.others if not _names((name,)).search(self.text)]
        return _names((*self.answers, *others))

    def is_right(self, said: str) -> bool:
        """Whether the first of the answers that `said` names, as whole words, is a right one. What
        stands in the question is no answer.
        """
        match = self._named.search(said)
        return match is not None and match[0].lower() in {answer.lower() for answer in self.answers}


class QuestionSet(NamedTuple):
    """What a model is asked in one language. halves: questions; instructions: what has no one
    answer; frame: what stands before and after a question to a model without a chat template.
    """

    code: str
    language: str
    halves: tuple[list[Question], list[Question]]
    instructions: list[str]
    frame: tuple[str, str]


def question_set(language: str, seed: int = 0, count: int = COUNT) -> QuestionSet:
    """At most `count` questions in a language, drawn by the seed from all its tables and sums; in
    English where it has none.
    """
    draw, code = random.Random(seed), language if language in TABLES else "en"
    own = YAML(typ="safe").load(TABLES[code])
    numbers = own["numbers"].split()
    pool = [question for table in own["tables"] for question in _of_table(numbers, **table)]
    pool += _sums(draw, own["sums"], numbers)
    draw.shuffle(pool)
    half = min(count, len(pool)) // 2
    halves = pool[:half], pool[half : 2 * half]
    return QuestionSet(code, own["language"], halves, own["instructions"], tuple(own["frame"]))


def rules_of(code: str) -> tuple[int, str]:
    """What decides which answers in a language are right."""
    return RULES, sha256_of_file(TABLES[code])


def _of_table(
    numbers: list[str], ask: str, answers: dict[str, str], first: bool = False
) -> list[Question]:
    right = {about: tuple(own.split("|")) for about, own in answers.items()}
    named = {name for own in right.values() for name in own}
    if not named.isdisjoint(_NUMBERS):
        named |= {word for word in numbers if "-" in word}  # so that twenty-five is not twenty
    return [
        Question(ask.format(about), own, tuple(sorted(named.difference(own))) if first else ())
        for about, own in right.items()
    ]


def _sums(draw: random.Random, asks: dict[str, str], numbers: list[str]) -> list[Question]:
    sums, large = set[tuple[str, int]](), numbers[13:]  # which no question has
    while len(sums) < SUMS:
        one, other = draw.randint(2, 12), draw.randint(2, 12)
        ways = {"plus": one + other, "minus": one - other, "times": one * other}
        word = draw.choice([*ways])
        if ways[word] > 0 and ways[word] not in (one, other):
            sums.add((asks[word].format(one, other), ways[word]))
    rights = [(text, (str(number), *numbers[number : number + 1])) for text, number in sorted(sums)]
    return [
        Question(text, own, tuple(sorted({*_NUMBERS, *large}.difference(own))))
        for text, own in rights
    ]


@cache
def _names(words: tuple[str, ...]) -> re.Pattern[str]:
    """Any of `words` as a whole; a number is not part of a longer one, and not below zero."""
    listed = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(
        rf"(?<![^\W_])(?<!\d[.,])(?!(?<=[-−–])\d)(?:{listed})(?![^\W_]|[.,]\d)", re.IGNORECASE
    )


def begins_alike(one: str, other: str) -> bool:
    """Whether two answers have the same first words."""
    return one.split()[:_OPENING] == other.split()[:_OPENING]


@cache
def spoken(language: str, other: str) -> Callable[[str], bool] | None:
    """Return a test of whether a text is surely in `language` and not in the other, and not surely
    in a third one; None where py3langid does not know it.
    """
    if (
        language == other
        or language not in (identifier := LanguageIdentifier.from_model_file(MODEL_FILE)).labels
    ):
        return None

    def is_spoken(text: str) -> bool:
        scores = dict(identifier.rank(text))
        own, best = scores[language], max(scores.values())
        return (
            len(text.encode()) >= _TOLD
            and own - scores.get(other, -math.inf) >= _SURE
            and best - own < _SURE
        )

    return is_spoken
