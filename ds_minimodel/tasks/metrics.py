"""Official metrics, in percent: accuracy, exact match and F1 of SQuAD 1.1 and of MLQA, nearest neighbours."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ds_minimodel.tasks.qa import Question

# MLQA's articles (mlqa_evaluation_v1.py); languages that are not here have none.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": r"\sال^|ال",
}
_HAN = re.compile("([\u4e00-\u9fa5])")
_BLOCK = 1 << 24  # similarities that are held at a time
_SAME = 1e-6  # difference of two cosines that fp32 may make of one: products round by their place in a matrix


def accuracy(predictions: Sequence[Any] | np.ndarray, labels: Sequence[Any] | np.ndarray) -> float:
    """Percent of the predictions (N,) that are the label."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    assert predictions.shape == labels.shape
    return 100.0 * float((predictions == labels).mean())


def neighbour_accuracy(
    similarity: Callable[[slice], np.ndarray], pairs: np.ndarray, num_queries: int, num_candidates: int
) -> float:
    """Percent of `pairs` (N, 2), a query and a candidate each, whose query has its nearest candidate in one of them.

    similarity: (rows, candidates) cosines of some rows of the queries. Of k candidates that are equally near, but for
    rounding, each counts for 1/k; so they do not depend on their order.
    """
    right = np.unique(pairs[:, 0] * num_candidates + pairs[:, 1])
    found = np.zeros(num_queries)
    size = max(1, _BLOCK // num_candidates)
    for first in range(0, num_queries, size):
        similarity_QC = similarity(slice(first, first + size))
        rows, nearest = np.nonzero(similarity_QC >= similarity_QC.max(1, keepdims=True) - _SAME)
        keys = (first + rows) * num_candidates + nearest
        is_right = right[np.minimum(np.searchsorted(right, keys), len(right) - 1)] == keys
        count = len(similarity_QC)
        shares = np.maximum(np.bincount(rows, minlength=count), 1)  # none is nearest where a similarity is NaN
        found[first : first + count] = np.bincount(rows, is_right, count) / shares
    return 100.0 * float(found[pairs[:, 0]].mean())


def score_qa(
    predictions: Mapping[str, str], questions: Sequence[Question], language: str | None = None
) -> dict[str, float]:
    """{"exact_match": percent, "f1": percent} of {question id: answer}; an unanswered question scores 0.

    language: None for SQuAD 1.1's official script (XQuAD uses it for all languages), else MLQA's
    rules for the language of the answers; languages that MLQA lacks are cut at spaces.
    """
    exact_match = f1 = 0.0
    for question in questions:
        if question.id not in predictions:
            continue
        predicted = answer_words(predictions[question.id], language)
        accepted = [answer_words(answer, language) for answer in question.answers]
        exact_match += predicted in accepted
        f1 += max(_f1(predicted, words) for words in accepted)
    return {"exact_match": 100.0 * exact_match / len(questions), "f1": 100.0 * f1 / len(questions)}


def answer_words(answer: str, language: str | None = None) -> list[str]:
    """Words that are compared: lower case, without punctuation and articles; Chinese by character.

    The official scripts join these by spaces and compare the strings, which is the same.
    """
    bare = "".join(char for char in answer.lower() if char not in string.punctuation)
    if language is not None:
        bare = "".join(char for char in bare if not unicodedata.category(char).startswith("P"))
    articles = _ARTICLES.get(language or "en")
    if articles:
        bare = re.sub(articles, " ", bare)
    if language == "zh":
        bare = _HAN.sub(r" \1 ", bare)
    return bare.split()


def _f1(predicted: list[str], accepted: list[str]) -> float:
    num_same = sum((Counter(predicted) & Counter(accepted)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(accepted)
    return 2 * precision * recall / (precision + recall)
