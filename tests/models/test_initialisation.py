"""First packs: what is copied, combined and drawn."""

import numpy as np
import pytest
import torch

from ds_minimodel.common.vocabulary import Vocabulary
from ds_minimodel.models.body import INIT_STD
from ds_minimodel.models.initialisation import Pieces, overlap, pieces, random

PAD = 1
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
SOURCE = [*SPECIAL, "▁the", "▁in", "a", "s", ".", "▁house", "<mask>"]
TARGET = [
    *SPECIAL,
    ".",
    "▁in",
    "▁haus",
    "▁die",
    "ü",
    "s",
    *(f"▁wort{i}" for i in range(3000)),
    "<mask>",
]


def with_ids(pieces):
    return Pieces(
        Vocabulary(len(pieces), bos=0, pad=PAD, eos=2, unk=3, mask=len(pieces) - 1), pieces
    )


BOTH = with_ids(TARGET), with_ids(SOURCE)


@pytest.fixture
def source_tensors():
    torch.manual_seed(0)
    tokens = torch.randn(len(SOURCE), 16)
    # Training moves this row: the projection of the output is tied to the embeddings.
    tokens[PAD] = 0.5
    return {"tokens": tokens, "bias": torch.randn(len(SOURCE))}


def test_overlap_is_by_the_strings_of_pieces(source_tensors):
    tensors = overlap(*BOTH, source_tensors, seed=3)
    shared = [piece for piece in TARGET if piece in SOURCE]
    assert len(shared) == 8
    assert {"<s>", "</s>", "<unk>", "<mask>", ".", "▁in", "s"} < set(shared)
    for piece in shared:
        into = TARGET.index(piece)
        out_of = SOURCE.index(piece)
        assert tensors["bias"][into] == source_tensors["bias"][out_of]
        if piece != "<pad>":
            assert tensors["tokens"][into].equal(source_tensors["tokens"][out_of])
    assert (tensors["tokens"][PAD] == 0).all()


def test_rows_without_a_counterpart_are_drawn(source_tensors):
    tensors = overlap(*BOTH, source_tensors, seed=3)
    new = [index for index, piece in enumerate(TARGET) if piece not in SOURCE]
    rows = tensors["tokens"][new]
    assert tensors["tokens"].shape == (len(TARGET), 16)
    assert tensors["bias"].shape == (len(TARGET),)
    assert abs(rows.std() / INIT_STD - 1) < 0.02
    assert abs(rows.mean()) < INIT_STD / 50
    assert (tensors["bias"][new] == 0).all()
    assert len(rows.unique(dim=0)) == len(rows)


def joined(tensors):
    return torch.cat([tensors["tokens"], tensors["bias"][:, None]], 1).double().numpy()


def test_pieces_without_parts_are_drawn_from_the_sources_distribution(source_tensors):
    parts = [[]] * len(TARGET)
    rows = joined(pieces(*BOTH, source_tensors, parts, seed=3))[4:-1]
    old = joined(source_tensors)
    np.testing.assert_allclose(rows.mean(0), old.mean(0), atol=0.1)
    np.testing.assert_allclose(rows.std(0), old.std(0, ddof=1), rtol=0.1)


def test_random(source_tensors):
    tokens = random(BOTH[0], source_tensors, seed=3)["tokens"]
    assert abs(tokens.std() / INIT_STD - 1) < 0.02
    assert not tokens[PAD].any()


def by_overlap(source_tensors, seed):
    return overlap(*BOTH, source_tensors, seed)


def by_pieces(source_tensors, seed):
    """Of all but 10 pieces the row is that of the source's third piece."""
    return pieces(*BOTH, source_tensors, [[2]] * (len(TARGET) - 10) + [[]] * 10, seed)


@pytest.mark.parametrize("method, drawn", [(by_overlap, len(TARGET) - 8), (by_pieces, 10)])
def test_what_is_drawn_is_a_function_of_the_seed_and_the_source_stays(
    source_tensors, method, drawn
):
    before = {name: tensor.clone() for name, tensor in source_tensors.items()}
    first = method(source_tensors, seed=3)["tokens"]
    again = method(source_tensors, seed=3)["tokens"]
    other = method(source_tensors, seed=4)["tokens"]
    assert first.equal(again)
    assert 0 < (first != other).any(1).sum() <= drawn
    assert all(tensor.equal(before[name]) for name, tensor in source_tensors.items())


def test_special_tokens_are_shared_by_what_they_are(source_tensors):
    """Spelt otherwise, at other ids, and without some: BERT's, of which this one has no [UNK]."""
    strings = ["[PAD]", "▁in", "<unk>", "<s>", "[SEP]", "[MASK]", "[CLS]"]
    bert = Pieces(Vocabulary(7, bos=6, eos=4, pad=0, mask=5), strings)
    for first in (
        overlap(bert, BOTH[1], source_tensors, seed=3),
        pieces(bert, BOTH[1], source_tensors, [[]] * 7, seed=3),
    ):
        rows = joined(first)
        old = joined(source_tensors)
        np.testing.assert_array_equal(rows[[6, 4, 5]], old[[0, 2, -1]])
        assert rows[0, -1] == old[PAD, -1]
        assert not rows[0, :-1].any()
        # These are pieces of text that are spelt like special tokens.
        assert not (rows[2] == old[3]).all()
        assert not (rows[3] == old[0]).all()
