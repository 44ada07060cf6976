"""Short questions with known answers, made of tables, and what is seen in the answers to them."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from ruamel.yaml import YAML

TABLES = {path.suffixes[0][1:]: path for path in Path(__file__).parent.glob("questions.*.yaml")}
MAX_QUESTIONS = 250
MIN_BYTES = 20  # of a text whose language can be told
MIN_NATS = 10.0  # by which a language must be likelier than another one


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        text: what is asked.
        answers: right ones.
        others: wrong ones, which count where they are named before a right one.
    """

    text: str
    answers: tuple[str, ...]
    others: tuple[str, ...] = ()

    @cached_property
    def _named(self) -> re.Pattern[str]:
        # A wrong answer that stands in the question says nothing.
        others = [name for name in self.others if not _any_of((name,)).search(self.text)]
        return _any_of((*self.answers, *others))

    def is_right(self, said: str) -> bool:
        """Return whether the first of the answers that `said` names, as whole words, is right.

        What stands in the question is no answer.
        """
        match = self._named.search(said)
        return match is not None and match[0].lower() in {answer.lower() for answer in self.answers}


def question_set(
    language: str, count: int = MAX_QUESTIONS, seed: int = 0
) -> tuple[str, tuple[str, str], list[Question]]:
    """Draw at most `count` questions in a language, or in English where it has no tables.

    Returns:
        The code of their language, what stands before and after a question to a model without a
        chat template, and the questions.
    """
    code = language if language in TABLES else "en"
    content = YAML(typ="safe").load(TABLES[code])
    pool = [question for table in content["tables"] for question in _of_table(**table)]
    random.Random(seed).shuffle(pool)
    return code, tuple(content["frame"]), pool[:count]


def _of_table(ask: str, answers: dict[str, str], *, first: bool = False) -> list[Question]:
    """Return the questions of a table; first: of its answers that are named, the first counts."""
    named = {name for names in answers.values() for name in names.split("|")}
    questions = list[Question]()
    for about, names in answers.items():
        right = names.split("|")
        others = sorted(named.difference(right)) if first else []
        questions.append(Question(ask.format(about), tuple(right), tuple(others)))
    return questions


@cache
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    """Match any of `words` as a whole: twenty is no part of twenty-five, nor 12 of -12 or 12.5."""
    listed = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(
        rf"(?<![^\W_])(?<!\d[.,])(?!(?<=[-−–])\d)(?:{listed})(?![^\W_]|[.,]\d|-\w)", re.IGNORECASE
    )


def loops(said: str) -> bool:
    """Return whether something with a letter stands in `said` three times, one after the other."""
    repeats = re.finditer(r"(?is)(\w.{2,}?)(?:\W*\1){2}", said)
    return any(re.search(r"[^\W\d_]", match[1]) for match in repeats)


def language_test(language: str, other: str) -> Callable[[str], bool] | None:
    """Return a test of whether a text is in a language.

    The text is surely in `language`, not in the other, and not surely in a third one. There is no
    test, None, where py3langid does not know the language.
    """
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    if language == other or language not in identifier.labels:
        return None

    def is_in_language(text: str) -> bool:
        nats = dict(identifier.rank(text))
        likeliest = max(nats.values())
        is_sure = nats[language] - nats.get(other, -math.inf) >= MIN_NATS
        return len(text.encode()) >= MIN_BYTES and is_sure and likeliest - nats[language] < MIN_NATS

    return is_in_language
