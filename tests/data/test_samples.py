"""Samples under masked language modelling: batches do not depend on slicing, masks follow fairseq's
numbers.
"""

import numpy as np
import pytest

from ds_minimodel.common.random import Stream, permute, sample_key
from ds_minimodel.common.vocabulary import FILLER, IGNORED, Vocabulary
from ds_minimodel.data.samples import BlockTable, MixedReader, SampleReader
from ds_minimodel.models.objectives import OBJECTIVES, Sampler
from ds_minimodel.models.objectives.objective import (
    MaskedLmSettings,
    choose_positions,
    replacements,
)
from ds_minimodel.tokenizers.tokenizer import trained_layout
from tests.helpers.refusals import refuses

SEQ_LENGTH = 30
# Ids of the vocabulary that is trained here.
BOS = 0
EOS = 2


@pytest.fixture(scope="module", params=["complete", "complete_doc"])
def sampler(request, store):
    return sampler_of(store, BlockTable(store, request.param, SEQ_LENGTH), seed=5)


def sampler_of(store, blocks, seed):
    return Sampler(
        SampleReader(store, blocks, seed), OBJECTIVES["masked-lm"], MaskedLmSettings(mask_prob=0.15)
    )


def samples(batch):
    """Each row of a batch without its padding: all that must not depend on the slice."""
    for row, length in enumerate(batch["lengths"]):
        used = batch["targets"][row] != IGNORED
        assert (batch["tokens"][row, length:] == FILLER).all()
        assert (batch["loss_positions"][row, ~used] == 0).all()
        yield (
            batch["tokens"][row, :length].tolist(),
            batch["loss_positions"][row, used].tolist(),
            batch["targets"][row, used].tolist(),
            int(batch["sample_keys"][row]),
        )


def originals(batch):
    """The token ids before masking, as (B, S)."""
    tokens = batch["tokens"].copy()
    rows, slots = np.nonzero(batch["targets"] != IGNORED)
    tokens[rows, batch["loss_positions"][rows, slots]] = batch["targets"][rows, slots]
    return tokens


def test_rows_are_blocks_after_bos(sampler, store):
    last = len(sampler.reader.blocks)
    # Over the end of an epoch.
    batch = sampler.batch(last - 10, last + 10)
    numbers = [int(permute(n % last, last, 5, n // last)) for n in range(last - 10, last + 10)]
    for row, number in enumerate(numbers):
        start, size = (int(part[0]) for part in sampler.reader.blocks.spans(np.array([number])))
        assert originals(batch)[row, : size + 1].tolist() == [BOS, *store.read(start, start + size)]
        assert batch["sample_keys"][row] == sample_key(5, (last - 10 + row) // last, number).view(
            np.int32
        )


def test_samples_do_not_depend_on_the_slice(sampler):
    last = len(sampler.reader.blocks)
    whole = list(samples(sampler.batch(last - 20, last + 20)))
    for size in (1, 7, 40):
        parts = [
            sample
            for first in range(last - 20, last + 20, size)
            for sample in samples(sampler.batch(first, min(first + size, last + 20)))
        ]
        assert parts == whole


def test_an_epoch_holds_every_block_once_in_another_order_and_with_other_masks(sampler):
    last = len(sampler.reader.blocks)
    starts, lengths = sampler.reader.blocks.spans(np.arange(len(sampler.reader.blocks)))
    blocks = sorted(
        sampler.reader.store.read(start, start + size).tolist()
        for start, size in zip(starts, lengths)
    )
    epochs = [sampler.batch(epoch * last, (epoch + 1) * last) for epoch in range(2)]
    for batch in epochs:
        rows = [row[1:length].tolist() for row, length in zip(originals(batch), batch["lengths"])]
        assert sorted(rows) == blocks
        assert rows != blocks
    masks = [
        {
            tuple(row[:length]): batch["loss_positions"][number].tolist()
            for number, (row, length) in enumerate(zip(originals(batch).tolist(), batch["lengths"]))
        }
        for batch in epochs
    ]
    assert sum(masks[0][row] == masks[1][row] for row in masks[0]) < 0.1 * last


def test_shares_of_the_samples_are_dialogues_and_another_texts_whatever_the_slice(store):
    """Either share holds, and what is replayed is marked alone."""
    text = SampleReader(store, BlockTable(store, "complete", 30), seed=30)
    chats = SampleReader(store, BlockTable(store, "complete", 20), seed=20)
    others = SampleReader(store, BlockTable(store, "complete", 24), seed=24)
    reader = MixedReader(MixedReader(text, chats, 0.25, Stream.CHATS), others, 0.2)
    found = reader.read(0, 400)
    is_of = [np.isin(found.keys, part.read(0, 400).keys) for part in (text, chats, others)]
    assert (found.replayed == is_of[2]).all()
    assert found.learned is None
    assert [abs(rows.sum() - share) < 40 for rows, share in zip(is_of, (240, 80, 80))] == [True] * 3
    mixed = Sampler(reader, OBJECTIVES["masked-lm"], MaskedLmSettings(mask_prob=0.15))
    parts = [
        sample for first in range(0, 400, 80) for sample in samples(mixed.batch(first, first + 80))
    ]
    assert parts == [*samples(mixed.batch(0, 400))]


def random_rows(count, width, vocab_size):
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, width + 1, count)
    tokens = draw.integers(4, vocab_size - 1, (count, width))
    tokens[:, 0] = BOS
    tokens[np.arange(count), lengths - 1] = EOS
    tokens[np.arange(width) >= lengths[:, None]] = FILLER
    return tokens, lengths, sample_key(1, 0, np.arange(count))


@pytest.mark.parametrize("mask_prob", [0.15, 0.4, 0.001, 0.999])
def test_as_many_positions_are_chosen_as_in_fairseq(mask_prob):
    """int(p * n + U[0, 1)): one of the two nearest integers, and p * n on average."""
    tokens, lengths, keys = random_rows(4000, 64, 1000)
    read, targets, used = choose_positions(tokens, lengths, keys, mask_prob)
    counts = used.sum(axis=1)
    assert (counts >= np.floor(mask_prob * lengths)).all()
    assert (counts <= np.ceil(mask_prob * lengths)).all()
    error = (counts - mask_prob * lengths).mean()
    assert abs(error) < 5 * 0.5 / np.sqrt(4000)
    for row in range(0, 4000, 100):
        chosen = read[row, used[row]]
        assert (np.diff(chosen) > 0).all()
        assert (chosen < lengths[row]).all()
        assert targets[row, used[row]].tolist() == tokens[row, chosen].tolist()
    assert (targets[~used] == IGNORED).all()
    assert (read[~used] == 0).all()


def test_every_position_is_equally_likely_special_ones_too():
    tokens, _, keys = random_rows(6000, 20, 1000)
    lengths = np.full(6000, 20)
    read, _, used = choose_positions(tokens, lengths, keys, 0.15)  # exactly 3 of 20
    counts = np.bincount(read[used], minlength=20)
    assert (used.sum(axis=1) == 3).all()
    assert (abs(counts - 900) < 5 * np.sqrt(900 * 0.85)).all()
    pairs = np.zeros((20, 20))
    for one, other in [(0, 1), (0, 2), (1, 2)]:
        np.add.at(pairs, (read[:, one], read[:, other]), 1)
    expected = 6000 * 3 / 190  # pairs are as likely as each other
    assert (abs(pairs[np.triu_indices(20, 1)] - expected) < 5 * np.sqrt(expected)).all()


def test_four_fifths_are_masked_a_tenth_drawn_a_tenth_kept():
    targets = np.full((4000, 50), 77)
    seen = replacements(targets, sample_key(1, 0, np.arange(4000)), trained_layout(1000))
    share = {"mask": (seen == 999).mean(), "kept": (seen == 77).mean()}
    assert abs(share["mask"] - 0.8) < 0.005
    assert abs(share["kept"] - 0.1 - 0.1 / 995) < 0.004
    drawn = seen[(seen != 999) & (seen != 77)]
    assert drawn.min() == 4
    assert drawn.max() == 998  # uniform over pieces, never special
    counts = np.bincount(drawn, minlength=999)[4:]
    expected = 20_000 / 995
    assert ((counts - expected) ** 2 / expected).sum() < 995 + 6 * np.sqrt(2 * 995)


def test_special_tokens_anywhere_are_never_drawn():
    """As a BERT has them, the mask among the pieces."""
    bert = Vocabulary(30, pad=0, unk=10, bos=11, eos=12, mask=13)
    seen = replacements(np.full((4000, 50), 20), sample_key(1, 0, np.arange(4000)), bert)
    assert sorted({*seen.flatten().tolist()}) == [*range(1, 10), *range(13, 30)]
    counts = np.bincount(seen[(seen != 13) & (seen != 20)], minlength=30)
    assert (abs(counts[counts > 0] - 20_000 / 25) < 6 * np.sqrt(20_000 / 25)).all()


class Store:
    """Tokens 4, 5, … of a vocabulary."""

    masked = False

    def __init__(self, **special):
        self.vocabulary = Vocabulary(40, **special, name="the folder")

    def read(self, start, stop):
        return np.arange(4 + start, 4 + stop)


class Blocks:
    """Two blocks of 7 tokens."""

    seq_length = 8

    def __len__(self):
        return 2

    def spans(self, numbers):
        return 7 * numbers, np.full(len(numbers), 7)


def test_a_vocabulary_without_a_mask_cannot_be_masked():
    with refuses(r"the folder: has no mask token \(mask\), which the objective masked-lm needs$"):
        sampler_of(Store(bos=0, eos=1), Blocks(), seed=1)


def test_a_text_begins_with_its_first_token_where_the_vocabulary_has_no_other():
    first = [*range(4, 11)]
    second = [*range(11, 18)]
    for special, expected in (
        ({"bos": 3}, [[3, *first], [3, *second]]),
        ({}, [[*first, FILLER], [*second, FILLER]]),
    ):
        read = SampleReader(Store(**special), Blocks(), seed=1).read(0, 2)
        assert sorted(read.tokens.tolist()) == expected
        assert read.lengths.tolist() == [7 + len(special)] * 2
