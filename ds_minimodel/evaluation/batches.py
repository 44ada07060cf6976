"""Encoded examples, and the batches that training and evaluation make of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ds_minimodel.common.memory import keeping_blocks
from ds_minimodel.common.random import permute, sample_key
from ds_minimodel.common.vocabulary import FILLER, IGNORED

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

ArrayBatch = dict[str, Any]  # arrays as models/trainable.py names them, and "count"
# Padded tokens of one forward pass without gradients: a CPU takes few, for the memory, and a GPU
# enough to compute.
INFERENCE_TOKENS = {"cpu": 4096, "cuda": 16_384}
PADDING_THAT_PAYS = 0.05  # share of a batch from which on packing saves more than its copies cost


@dataclass(frozen=True)
class Examples:
    """N token sequences laid end to end.

    Attributes:
        tokens: (T,) int32.
        bounds: (N+1,) int64. Sequence i is tokens[bounds[i]:bounds[i+1]].
        targets: (N, M) int64, each row one term of the loss; or (T,) int64, each one that is not
            IGNORED a term.
        reads_start: Whether the head reads position 0 only, else every position.
        second: (N,) int64, position of the first token of each sequence's second text, where they
            have two.
        prompts: (N,) int64, count of the tokens that a sequence begins with and that are no part of
            its text, where they begin with any.
    """

    tokens: np.ndarray
    bounds: np.ndarray
    targets: np.ndarray
    reads_start: bool
    second: np.ndarray | None = None
    prompts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each sequence."""
        return np.diff(self.bounds)

    def batch(
        self, index: np.ndarray, keys: np.ndarray | Sequence[int], ignored: np.ndarray | None = None
    ) -> ArrayBatch:
        """Make a batch, padded to its longest example.

        Its targets are (B, M), or (B, S) where there is one a token. "count" is the number of terms
        of its loss. Where much is padding, "token_index" (T,) int64 says which of the B*S positions
        are tokens, so that the model can leave out the rest (models/body.py).

        Args:
            index: (B,), which examples.
            keys: (B,) uint32, of dropout.
            ignored: (B,) bool, rows that give no loss.
        """
        starts = self.bounds[index]
        lengths = self.lengths[index]
        positions = np.arange(lengths.max())
        is_token_BS = positions < lengths[:, None]
        token_index = (starts[:, None] + positions)[is_token_BS]
        tokens = np.full(is_token_BS.shape, FILLER, dtype=np.int64)
        tokens[is_token_BS] = self.tokens[token_index]
        one_a_token = self.targets.ndim == 1
        if one_a_token:
            targets = np.full(is_token_BS.shape, IGNORED, dtype=np.int64)
            targets[is_token_BS] = self.targets[token_index]
        else:
            targets = self.targets[index]
        if ignored is not None:
            targets[ignored] = IGNORED
        terms = targets if one_a_token else targets[:, 0]
        batch: ArrayBatch = {
            "tokens": tokens,
            "lengths": lengths.astype(np.int32),
            "targets": targets,
            "sample_keys": np.asarray(keys, dtype=np.uint32).view(np.int32),
            "count": int((terms != IGNORED).sum()),
        }
        if is_token_BS.mean() < 1 - PADDING_THAT_PAYS:
            batch["token_index"] = np.flatnonzero(is_token_BS)
        if self.reads_start:
            batch["loss_positions"] = np.zeros((len(index), 1), dtype=np.int64)
        if self.second is not None:
            batch["second"] = self.second[index]
        if self.prompts is not None:
            batch["prompts"] = self.prompts[index]
        return batch


def join(
    sequences: Sequence[np.ndarray],
    targets: np.ndarray | Sequence,
    *,
    reads_start: bool,
    per_token: bool = False,
    second: Sequence[int] | None = None,
    prompts: np.ndarray | None = None,
) -> Examples:
    """Lay sequences end to end.

    Args:
        sequences: N integer arrays.
        targets: (N,) or (N, M); with `per_token` (T,), end to end.
        reads_start: As of Examples.
        per_token: Whether there is a target for each token.
        second: (N,) position of the first token of each sequence's second text.
        prompts: As of Examples.
    """
    lengths = [len(sequence) for sequence in sequences]
    shaped = np.asarray(targets, dtype=np.int64)
    if not per_token:
        shaped = shaped.reshape(len(sequences), -1)
    return Examples(
        tokens=np.concatenate(sequences).astype(np.int32),
        bounds=np.cumsum([0, *lengths], dtype=np.int64),
        targets=shaped,
        reads_start=reads_start,
        second=None if second is None else np.asarray(second, dtype=np.int64),
        prompts=prompts,
    )


class TaskSampler:
    """Source of training batches, as a function of (seed, sample number).

    Nothing is remembered between calls. An epoch is `updates_per_epoch` = ceil(N / batch_size)
    updates of `slots` sample numbers each, which run through all epochs. Numbers beyond an update's
    batch, and those that fill an epoch's last batch, stand for no example and give no loss.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, slots: int | None = None):
        """Prepare the batches of a task.

        Args:
            examples: To train on.
            batch_size: Examples of an update.
            seed: Of their order.
            slots: Sample numbers of an update; more than `batch_size` where that many are easier to
                share among ranks.
        """
        self.examples = examples
        self.seed = seed
        self.batch_size = batch_size
        self.slots = slots or batch_size
        self.updates_per_epoch = -(-len(examples) // batch_size)
        self._filler = int(examples.lengths.argmin())

    def batch(self, first: int, last: int) -> ArrayBatch:
        """Return the batch of the global samples `first` … `last - 1`, any piece of an update's."""
        update, slot = np.divmod(np.arange(first, last), self.slots)
        epoch, update = np.divmod(update, self.updates_per_epoch)
        # The position of each sample in its epoch.
        position = update * self.batch_size + slot
        ignored = (slot >= self.batch_size) | (position >= len(self.examples))
        index = np.full(len(position), self._filler)
        index[~ignored] = permute(
            position[~ignored], len(self.examples), seed=self.seed, epoch=epoch[~ignored]
        )
        keys = sample_key(self.seed, epoch, np.where(ignored, position, index))
        return self.examples.batch(index, keys, ignored)


def inference_batches(
    examples: Examples, max_tokens: int
) -> Iterator[tuple[np.ndarray, ArrayBatch]]:
    """Yield (index (B,), batch) of batches that have each example once, longest first.

    A batch has at most `max_tokens` padded tokens, or a single example.
    """
    lengths = examples.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        index = order[start : start + max(1, max_tokens // int(lengths[order[start]]))]
        yield index, examples.batch(index, np.zeros(len(index)))
        start += len(index)


class Scorer(Protocol):
    """Model that gives an array for a batch: scores of a task, or likelihoods of tokens."""

    def parameters(self) -> "Iterator[Parameter]":
        """Yield the model's parameters."""
        ...

    def logits(self, batch: Any) -> "Tensor":
        """Return an array with a row for each example of a batch."""
        ...


def outputs(module: Scorer, examples: Examples) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (index (B,), fp32 array of what `module.logits` gives) of batches of all `examples`."""
    import torch

    from ds_minimodel.models.trainable import to_tensors

    device = next(module.parameters()).device
    with keeping_blocks():
        for index, batch in inference_batches(examples, INFERENCE_TOKENS[device.type]):
            with torch.inference_mode():
                logits = module.logits(to_tensors(batch, device)).float().cpu().numpy()
            yield index, logits
