"""The declaration of a training objective: all that the package asks of one.

An objective is one subclass of Objective, or of TextObjective, in one file beside this one, and one
entry of OBJECTIVES (__init__.py). Samplers, training steps, plans and costs read it; none of them
asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.config import Section, Share
from ds_minimodel.common.random import Stream, draws, stream_key, uniform, uniform_below
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary

if TYPE_CHECKING:
    from ds_minimodel.data.samples import Integers, Keys, MixedReader, SampleReader, Samples
    from ds_minimodel.models import BodyConfig
    from ds_minimodel.models.trainable import Model


class Objective(ABC):
    """What a body is trained to do on text.

    Attributes:
        name: in config.json.
        settings: the keys that it adds to the recipe's sections pretrain, build_mini and adapt.
        needs: special tokens that a vocabulary must have, as Vocabulary names them.
        causal: whether it is for bodies whose positions see what is before them alone.
        needs_lossless: whether text must come back from the ids of a vocabulary that is trained for
            it.
        whole_documents: whether a document is one text with its line ends, else each line is one.
        blocks: what a sample is made of where the recipe does not say.
        predicts_tokens: whether targets are ids, by which held-out text has bits, texts have
            likelihoods, new tokens a penalty and replay a meaning.
        hugging_face_class: how the name of Hugging Face's class for it ends; empty where that
            library has none.
    """

    name: ClassVar[str]
    settings: ClassVar[type[Section]]
    needs: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = False
    needs_lossless: ClassVar[bool] = False
    whole_documents: ClassVar[bool] = False
    blocks: ClassVar[str] = "complete"
    predicts_tokens: ClassVar[bool] = True
    hugging_face_class: ClassVar[str] = ""

    @abstractmethod
    def share_read(self, settings: Section) -> float:
        """Return the share of a sequence's positions that the heads read, on average."""

    def model(
        self, config: BodyConfig, vocab_size: int, head_depths: Sequence[int], num_base: int = 0
    ) -> Model:
        """Make a fresh model that is trained with it.

        Args:
            config: of the body.
            vocab_size: ids of the language.
            head_depths: layers after which there is a head.
            num_base: first ids, whose rows are a base's and do not train.
        """
        from ds_minimodel.models.trainable import LanguageModel

        return LanguageModel(config, vocab_size, head_depths=head_depths, num_base=num_base)


class TextObjective(Objective):
    """What a body is trained to do on samples that are cut from a text."""

    @abstractmethod
    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Make a batch of samples.

        Returns:
            Arrays under the names that models/trainable.py reads: tokens (B, S), which may be those
            of the samples, changed in place; loss_positions (B, M), where not all positions are
            read; targets, IGNORED where there is none; count, the number of loss terms.
        """

    @abstractmethod
    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        """Return {name: shape of one row} of `batch` for full sequences; all are int64.

        They are of the form that costs most, by which plans are made.
        """


class Sampler:
    """Batches of an objective on a text, as functions of the samples' global numbers."""

    def __init__(
        self, reader: SampleReader | MixedReader, objective: TextObjective, settings: Section
    ):
        """Make a sampler.

        Args:
            reader: of the text's samples.
            objective: what makes batches of them.
            settings: the objective's.

        Raises:
            UserError: the text's vocabulary lacks a special token that the objective needs.
        """
        self.reader = reader
        self.objective = objective
        self.settings = settings
        for token in objective.needs:
            reader.store.vocabulary.require(token, f"the objective {objective.name}")

    def batch(self, first: int, last: int) -> dict[str, Any]:
        """Return the batch of the samples [first, last).

        Returns:
            What TextObjective.batch makes, with lengths (B,) and sample_keys (B,) int32, and
            replayed (B,) bool where some are of another text.
        """
        samples = self.reader.read(first, last)
        keys = samples.keys.view(np.int32)
        batch = self.objective.batch(samples, self.reader.store.vocabulary, self.settings)
        if samples.replayed is not None:
            batch["replayed"] = samples.replayed
        return {**batch, "lengths": samples.lengths.astype(np.int32), "sample_keys": keys}


class MaskedLmSettings(Section):
    """Keys of a step that trains with this objective."""

    mask_prob: Share = 0.15
    """Encoders: share of tokens to predict."""


class MaskedLm(TextObjective):
    """Masked language modelling: the positions that are predicted are read, and no others."""

    name = "masked-lm"
    settings = MaskedLmSettings
    needs = ("mask",)
    hugging_face_class = "ForMaskedLM"

    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Make a batch of samples.

        Returns:
            tokens, of which some are replaced; loss_positions (B, M) int64, the masked ones in
            order, 0 where unused; targets (B, M) int64, the ids there, IGNORED where unused; count.
        """
        tokens = samples.tokens
        keys = samples.keys
        mask_prob = self.share_read(settings)
        read, targets, is_used = choose_positions(
            tokens, samples.lengths, keys, mask_prob=mask_prob
        )
        rows, slots = np.nonzero(is_used)
        tokens[rows, read[is_used]] = replacements(targets, keys, vocabulary)[rows, slots]
        return {"tokens": tokens, "loss_positions": read, "targets": targets, "count": len(rows)}

    def share_read(self, settings: Section) -> float:
        """Return the share of the tokens that are predicted."""
        assert isinstance(settings, MaskedLmSettings)
        return settings.mask_prob

    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        """Return {name: shape of one row} of a batch, with as many masked ones as there can be."""
        max_masked = int(self.share_read(settings) * seq_length) + 1
        return {"tokens": (seq_length,), "loss_positions": (max_masked,), "targets": (max_masked,)}


def choose_positions(
    tokens: Integers, lengths: Integers, sample_keys: Keys, mask_prob: float
) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """Choose what to predict as fairseq does.

    It is int(mask_prob * length + U[0, 1)) positions of each row, without replacement; <s> and </s>
    may be among them.

    Args:
        tokens: (B, S).
        lengths: (B,) tokens before padding.
        sample_keys: (B,).
        mask_prob: share of tokens to predict.

    Returns:
        The positions in order (B, M); the ids there (B, M); and which of them are used, (B, M)
        bool. M is the largest count of any row, at least 1.
    """
    rounding = uniform(draws(stream_key(sample_keys, Stream.MASK_COUNT), 0, 1))[:, 0]
    counts = (mask_prob * lengths + rounding).astype(np.int64)
    width = tokens.shape[1]
    positions = np.arange(width, dtype=np.uint64)
    position_draws = draws(stream_key(sample_keys, Stream.MASK_POSITIONS), 0, width)
    ranks = position_draws.astype(np.uint64) << np.uint64(32) | positions
    ranks[positions >= lengths[:, None]] = np.iinfo(np.uint64).max
    # Sorted by what is drawn, the lower halves are a row's positions in random order.
    ranks.sort(axis=1)
    read = (ranks[:, : max(1, counts.max())] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    is_used = np.arange(read.shape[1]) < counts[:, None]
    # What is unused is sorted to the right end.
    read[~is_used] = width
    read.sort(axis=1)
    read[~is_used] = 0
    targets = np.where(is_used, np.take_along_axis(tokens, read, axis=1), IGNORED)
    return read, targets, is_used


def replacements(targets: Integers, sample_keys: Keys, vocabulary: Vocabulary) -> Integers:
    """Return the tokens that the model sees at the positions to predict, (B, M).

    They are <mask> for 80 %, a piece drawn uniformly from all that are not special for 10 %, the
    token itself for 10 %.
    """
    slots = targets.shape[1]
    kind = uniform(draws(stream_key(sample_keys, Stream.MASK_KIND), 0, slots))
    piece_draws = draws(stream_key(sample_keys, Stream.MASK_PIECE), 0, slots)
    pieces = vocabulary.pieces(uniform_below(piece_draws, vocabulary.num_pieces))
    mask = vocabulary.require("mask", "masked language modelling")
    return np.where(kind < 0.8, mask, np.where(kind < 0.9, pieces, targets))


class CausalLm(TextObjective):
    """Next-token prediction: every position is read, and all but the last of a sequence predict."""

    name = "causal-lm"
    settings = Section
    causal = True
    needs_lossless = True
    whole_documents = True
    blocks = "none"
    hugging_face_class = "ForCausalLM"

    def batch(self, samples: Samples, vocabulary: Vocabulary, settings: Section) -> dict[str, Any]:
        """Make a batch of samples.

        Returns:
            tokens; targets (B, S) int64, the token after each, IGNORED at a row's last and behind
            it, and where that token is not learned; count.
        """
        tokens = samples.tokens
        lengths = samples.lengths
        targets = np.full_like(tokens, IGNORED)
        targets[:, :-1] = tokens[:, 1:]
        targets[np.arange(tokens.shape[1]) >= lengths[:, None] - 1] = IGNORED
        if samples.learned is not None:
            targets[:, :-1][~samples.learned[:, 1:]] = IGNORED
        return {"tokens": tokens, "targets": targets, "count": int((targets != IGNORED).sum())}

    def share_read(self, settings: Section) -> float:
        """Return 1: every position is read."""
        return 1.0

    def shapes(self, settings: Section, seq_length: int) -> Mapping[str, tuple[int, ...]]:
        """Return {name: shape of one row} of a batch."""
        return {"tokens": (seq_length,), "targets": (seq_length,)}
