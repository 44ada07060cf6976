"""Alignment of pieces, against IBM's model 1 as a loop over pairs, and what it finds in a toy
language.
"""

import random

import numpy as np
import pytest

from ds_minimodel.tokenizers.alignment import align, mixtures
from tests.helpers.references import model_one

ENGLISH = "the house is small big a dog cat sees and".split()
TOY = dict(zip(ENGLISH, "ta ko es mi gu un wau miu vid et".split(), strict=True))


def toy_pairs(number, seed=0):
    """Ids of English lines, and of their translation word by word in another order."""
    draw = random.Random(seed)
    lines = [draw.sample(range(len(ENGLISH)), draw.randint(2, 6)) for _ in range(number)]
    return lines, [draw.sample(line, len(line)) for line in lines]


def as_dict(alignment):
    keys = zip(alignment.source.tolist(), alignment.target.tolist(), strict=True)
    return dict(zip(keys, alignment.probability.tolist(), strict=True))


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("cells", [1, 50, 1 << 22])
def test_probabilities_are_those_of_the_loop(rounds, cells, monkeypatch):
    monkeypatch.setattr("ds_minimodel.tokenizers.alignment._CELLS", cells)
    draw = random.Random(3)
    sources = [[draw.randrange(12) for _ in range(draw.randint(0, 7))] for _ in range(60)]
    targets = [[draw.randrange(20) for _ in range(draw.randint(0, 5))] for _ in range(60)]
    expected = model_one(sources, targets, rounds)
    found = as_dict(align(sources, targets, rounds))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-12)


def test_each_word_of_a_toy_language_finds_its_translation():
    alignment = align(*toy_pairs(200))
    mixed = mixtures(alignment, top=1)
    assert mixed.target.tolist() == mixed.source.tolist() == list(range(len(TOY)))
    best = {int(f): p for f, p in zip(alignment.target[::-1], alignment.probability[::-1])}
    assert min(best.values()) > 0.6  # words stand anywhere, and the prior is for the diagonal


def test_the_order_of_pairs_changes_nothing_but_rounding():
    sources, targets = toy_pairs(300)
    order = random.Random(1).sample(range(300), 300)
    one = as_dict(align(sources, targets))
    other = as_dict(align([sources[i] for i in order], [targets[i] for i in order]))
    assert one == pytest.approx(other, rel=1e-9)


def test_weights_are_squares_of_the_likeliest_and_all_that_are_as_likely():
    # Nothing tells the seven pieces apart that one piece stands for; of three cells two are 2's.
    alignment = align([[3, 4, 5, 6, 7, 8, 9], [1, 2, 2]], [[0], [1]])
    mixed = mixtures(alignment)
    assert mixed.target.tolist() == [0, 1]
    assert mixed.starts.tolist() == [0, 7, 9]
    np.testing.assert_allclose(mixed.weight, [1 / 7] * 7 + [0.8, 0.2])
    assert mixed.source.tolist() == [3, 4, 5, 6, 7, 8, 9, 2, 1]


def test_pairs_without_pieces_align_nothing():
    mixed = mixtures(align([[1, 2], []], [[], [3]]))
    assert len(mixed.target) == len(mixed.source) == 0
