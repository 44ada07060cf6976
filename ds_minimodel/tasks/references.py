"""Scores that need no language model: majority class, TF-IDF, lexical overlap. All in percent, deterministic.

Each learns from the source language's training examples, where there are any, and is scored zero-shot in every test
language. Where one can't be made, its place has the reason, a str.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

try:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits  # which scikit-learn brings
except ImportError:  # the extra `report`; without it the scores that need it are None
    LogisticRegression = None

STEM_LETTERS = 5  # words count as the same when their first letters are: a rough stemmer
Label = TypeVar("Label", int, str)
Made = TypeVar("Made")
Scores = dict[str, float] | str  # language -> score, or why there is none
Tests = Mapping[str, tuple[Sequence[Any], Sequence[Label]]]  # language -> (inputs, labels)
_WORD = re.compile(r"\w+")
_HAN = re.compile("[\u3400-\u9fff]")
# Where a sentence ends: Latin marks before a space, Chinese ones anywhere.
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])\s*")


def _or_reason(make: Callable[..., Made]) -> Callable[..., Made | str]:
    """What `make` returns, by scikit-learn, or why it can't."""

    @wraps(make)
    def made(*arguments: Any) -> Made | str:
        if LogisticRegression is None:
            return "scikit-learn is not installed"
        try:
            return make(*arguments)
        except ValueError:  # of a vectoriser that finds no words, of a regression that finds one label
            return "too few texts, words or labels to learn from"

    return made


def majority_accuracies(train_labels: Iterable[Label], tests: Tests[Label]) -> dict[str, float]:
    """{language: accuracy of the most frequent training label}.

    tests: {language: (texts, labels)}; of labels that are equally frequent the first in order counts.
    """
    counts = Counter(train_labels)
    majority = min(counts, key=lambda label: (-counts[label], label))
    return {language: _accuracy([majority] * len(labels), labels) for language, (_, labels) in tests.items()}


@_or_reason
def tfidf_accuracies(
    train_texts: Sequence[str], train_labels: Sequence[Label], tests: Tests[Label]
) -> dict[str, float]:
    """{language: accuracy of logistic regression on TF-IDF of words and of 2 to 4 letters}.

    texts: strings. tests: {language: (texts, labels)}.
    """
    return _scores(_tfidf(tuple(train_texts), tuple(train_labels)), tests)


@_or_reason
def letter_similarities(
    texts: Sequence[str], others: Sequence[str]
) -> tuple[Callable[[slice], np.ndarray], Callable[[slice], np.ndarray]]:
    """Cosines of some `texts` to all `others`, and of some `others` to all `texts`, by TF-IDF of 2 to 4 letters.

    The weights are those of both together.
    """
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, dtype=np.float32)
    both = letters.fit_transform([*texts, *others])
    one, other = both[: len(texts)], both[len(texts) :]
    return lambda rows: (one[rows] @ other.T).toarray(), lambda rows: (other[rows] @ one.T).toarray()


@_or_reason
def overlap_accuracies(
    train_pairs: Sequence[tuple[str, str]], train_labels: Sequence[Label], tests: Tests[Label]
) -> dict[str, float]:
    """{language: accuracy of logistic regression on how much the two texts of a pair share}.

    pairs: (text, text). tests: {language: (pairs, labels)}.
    """
    features = {
        language: ([overlap_features(*pair) for pair in pairs], labels) for language, (pairs, labels) in tests.items()
    }
    return _scores(_overlap(tuple(train_pairs), tuple(train_labels)), features)


def overlap_features(first: str, second: str) -> list[float]:
    """Share of the first text's stems, and of its letter triples, that the second has."""
    return [overlap(stems(first), stems(second)), overlap(triples(first), triples(second))]


def best_sentence(question: str, context: str) -> str:
    """The sentence of `context` that shares most stems with `question`; of equal ones the shorter, then the earlier."""
    wanted = stems(question)
    sentences = [sentence for sentence in _SENTENCE_END.split(context) if sentence.strip()] or [context]
    return max(sentences, key=lambda sentence: (len(wanted & stems(sentence)), -len(sentence)))


def stems(text: str) -> set[str]:
    """First letters of the words; each Chinese character counts as a word."""
    spaced = _HAN.sub(r" \g<0> ", text.lower())
    return {word[:STEM_LETTERS] for word in _WORD.findall(spaced)}


def triples(text: str) -> set[str]:
    """All runs of three letters or digits, across words."""
    letters = "".join(_WORD.findall(text.lower()))
    return {letters[at : at + 3] for at in range(len(letters) - 2)}


def overlap(wanted: set[str], present: set[str]) -> float:
    """Share of `wanted` that is `present`; 0 of nothing."""
    return len(wanted & present) / len(wanted) if wanted else 0.0


# The newest fit is kept: the languages of a task are jobs that follow one another, with the same training data.


@lru_cache(maxsize=1)
def _tfidf(texts: tuple[str, ...], labels: tuple[Any, ...]) -> Any:
    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, min_df=3, max_features=100_000)
    model = make_pipeline(make_union(words, letters), LogisticRegression(C=20, max_iter=300, class_weight="balanced"))
    return _fitted(model, texts, labels)


@lru_cache(maxsize=1)
def _overlap(pairs: tuple[tuple[str, str], ...], labels: tuple[Any, ...]) -> Any:
    model = make_pipeline(StandardScaler(), LogisticRegression())
    return _fitted(model, [overlap_features(*pair) for pair in pairs], labels)


def _fitted(model: Any, inputs: Sequence[Any], labels: Sequence[Any]) -> Any:
    """The model, fitted by one thread: sums over several end in other bits, and now and then in another answer."""
    with threadpool_limits(1):
        return model.fit(inputs, labels)


def _scores(model: Any, tests: Tests[Label]) -> dict[str, float]:
    return {language: _accuracy(model.predict(inputs), labels) for language, (inputs, labels) in tests.items()}


def _accuracy(predicted: Sequence[Label], labels: Sequence[Label]) -> float:
    return 100.0 * sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)
