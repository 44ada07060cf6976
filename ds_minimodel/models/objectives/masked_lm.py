"""Masked language modelling: some tokens of a text are hidden, and predicted from all others (BERT's and RoBERTa's)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.random import Stream, draws, stream_key, uniform, uniform_below
from ds_minimodel.common.sections import Section, Share
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary
from ds_minimodel.models.objectives.objective import Objective

if TYPE_CHECKING:
    from ds_minimodel.data.samples import Integers, Keys, Samples


class MaskedLmSettings(Section):
    """Keys of a step that trains with this objective."""

    mask_prob: Share = 0.15
    """Share of tokens to predict: 80 % masked, 10 % replaced, 10 % kept."""


class MaskedLm(Objective):
    """Masked language modelling: the positions that are predicted are read, and no others."""

    name = "masked-lm"
    settings = MaskedLmSettings
    needs = ("mask",)
    hugging_face_class = "ForMaskedLM"

    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Beside the tokens, of which some are replaced: read (B, M) int64, the masked positions in order, 0 where
        unused; targets (B, M) int64, the ids there, IGNORED where unused."""
        tokens, lengths, keys = samples
        read, targets, used = choose_positions(tokens, lengths, keys, self.share_read(settings))
        rows, slots = np.nonzero(used)
        tokens[rows, read[used]] = replacements(targets, keys, vocabulary)[rows, slots]
        return {"tokens": tokens, "read": read, "targets": targets, "count": len(rows)}

    def share_read(self, settings: Section) -> float:
        assert isinstance(settings, MaskedLmSettings)
        return settings.mask_prob

    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        most = int(self.share_read(settings) * seq_length) + 1  # that a row may have masked
        return {"tokens": (seq_length,), "read": (most,), "targets": (most,)}


def choose_positions(
    tokens: Integers, lengths: Integers, sample_keys: Keys, mask_prob: float
) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """fairseq's choice of what to predict: int(mask_prob * length + U[0, 1)) positions of each row,
    without replacement; <s> and </s> may be among them.

    tokens (B, S), lengths (B,), sample_keys (B,). Returns read (B, M), targets (B, M) and used (B, M) bool,
    with M the most of any row, but at least 1.
    """
    rounding = uniform(draws(stream_key(sample_keys, Stream.MASK_COUNT), 0, 1))[:, 0]
    counts = (mask_prob * lengths + rounding).astype(np.int64)
    width = tokens.shape[1]
    positions = np.arange(width, dtype=np.uint64)
    position_draws = draws(stream_key(sample_keys, Stream.MASK_POSITIONS), 0, width)
    ranks = position_draws.astype(np.uint64) << np.uint64(32) | positions
    ranks[positions >= lengths[:, None]] = np.iinfo(np.uint64).max
    ranks.sort(axis=1)  # a row's positions in random order
    read = (ranks[:, : max(1, counts.max())] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    used = np.arange(read.shape[1]) < counts[:, None]
    read[~used] = width  # to the right end
    read.sort(axis=1)
    read[~used] = 0
    targets = np.where(used, np.take_along_axis(tokens, read, axis=1), IGNORED)
    return read, targets, used


def replacements(targets: Integers, sample_keys: Keys, vocabulary: Vocabulary) -> Integers:
    """Tokens that the model sees at the positions to predict, (B, M): <mask> for 80 %, a piece drawn
    uniformly from all that are not special for 10 %, the token itself for 10 %."""
    slots = targets.shape[1]
    kind = uniform(draws(stream_key(sample_keys, Stream.MASK_KIND), 0, slots))
    piece_draws = draws(stream_key(sample_keys, Stream.MASK_PIECE), 0, slots)
    pieces = vocabulary.pieces(uniform_below(piece_draws, vocabulary.num_pieces))
    mask = vocabulary.require("mask", "masked language modelling")
    return np.where(kind < 0.8, mask, np.where(kind < 0.9, pieces, targets))
