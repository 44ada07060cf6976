"""Sentences and pairs as token sequences."""

import numpy as np
import pytest

from ds_minimodel.evaluation.classification import encode_table
from ds_minimodel.evaluation.tables import Records


def sequences(examples):
    return [part.tolist() for part in np.split(examples.tokens, examples.bounds[1:-1])]


def records(*columns):
    return Records(columns, np.arange(len(columns[0])), tuple(map(str, range(len(columns[0])))))


def test_sentences(tokenizer):
    texts = ["abc", "日本", "", "κόσμος abc"]
    ids = tokenizer.encode(texts)
    examples = encode_table(tokenizer, records(texts), max_length=64)
    assert sequences(examples) == [[0, *row, 2] for row in ids]
    assert examples.targets.tolist() == [[0], [1], [2], [3]]
    cut = encode_table(tokenizer, records(texts), max_length=4)
    assert sequences(cut) == [[0, *row[:2], 2] for row in ids]


def cut_one_by_one(first, second, room):
    """The definition: the last token of the longer goes, of the second where both are as long."""
    first = list(first)
    second = list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return [0, *first, 2, 2, *second, 2]


@pytest.mark.parametrize("max_length", [6, 7, 8, 11, 12, 17, 64])
def test_pairs_lose_the_longer_text_first(tokenizer, max_length):
    texts = ["", "a", "abc", "日本人", "αβγδεζ ηθικλ", "abc def ghi jkl", "abcdefgh"]
    firsts = [first for first in texts for _ in texts]
    seconds = texts * len(texts)
    examples = encode_table(tokenizer, records(firsts, seconds), max_length)
    expected = [
        cut_one_by_one(first, second, max_length - 4)
        for first, second in zip(tokenizer.encode(firsts), tokenizer.encode(seconds), strict=True)
    ]
    assert sequences(examples) == expected
    assert examples.lengths.max() <= max_length
