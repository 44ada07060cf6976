"""Lines that a sentence encoder is trained on: their tokens, the vectors that they are to get, and
the order of their samples.

A line's number is its place in the pairs that train. The token store of either side has it there,
and so has the plain array of targets: what the untouched model makes of the pair's source side.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common import files
from ds_minimodel.common.random import permute, sample_key
from ds_minimodel.data.store import TokenStore, write_shard
from ds_minimodel.evaluation.batches import ArrayBatch, Examples
from ds_minimodel.tokenizers.tokenizer import Tokenizer

SHARD_LINES = 1 << 20
POOL = 8  # batches of lines that are sorted by length together
BLOCK_LINES = 512  # that the untouched model reads before they are on disk


def write_lines(folder: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Write lines into the token store `folder`: each is a document, its ids and the end of a text,
    though nothing else be left of it.
    """
    eos = tokenizer.vocabulary.require("eos", "a token store")
    shards = range(0, len(texts), SHARD_LINES)
    num_tokens = 0
    with files.atomic_folder(folder) as out:
        for number, first in enumerate(shards):
            ids = tokenizer.encode(texts[first : first + SHARD_LINES])
            lengths = [len(own) + 1 for own in ids]
            tokens = np.concatenate([[*own, eos] for own in ids])
            size = tokenizer.vocabulary.size
            with write_shard(out, number, size, tokenizer.sha256) as add:
                add(tokens, lengths)
            num_tokens += len(tokens)
        files.write_manifest(
            out,
            kind="token_store",
            shards=len(shards),
            tokenizer_sha256=tokenizer.sha256,
            **tokenizer.vocabulary.facts(),
            whole_documents=True,
            documents=len(texts),
            tokens=num_tokens,
        )


def examples_of(store: TokenStore, length: int) -> Examples:
    """The lines of a store as sequences of at most `length` tokens, between what begins and ends a
    text; each has its number as its target.
    """
    before, after = store.vocabulary.frame
    room = length - len(before) - len(after)
    ends = store.document_ends(0, store.num_tokens)
    starts = np.concatenate([[0], ends[:-1]])
    sizes = np.minimum(ends - starts - 1, room)  # without the end of a text
    bounds = np.concatenate([[0], np.cumsum(sizes + len(before) + len(after))])
    tokens = np.empty(bounds[-1], np.int32)
    whole = store.read(0, store.num_tokens)
    lines = zip(starts.tolist(), sizes.tolist(), bounds.tolist(), strict=False)
    for start, size, place in lines:
        first = place + len(before)
        tokens[place:first] = before
        tokens[first : first + size] = whole[start : start + size]
        tokens[first + size : first + size + len(after)] = after
    return Examples(tokens, bounds, np.arange(len(sizes))[:, None], reads_start=False)


class LineSampler:
    """Batches of lines with their targets, as functions of the samples' global numbers.

    An epoch is whole batches: it has every line once, and some of its first ones again where they
    fill its last batch. Batches are of lines of like length, in random order. All of it is a
    function of (seed, epoch, step).
    """

    def __init__(
        self, examples: Examples, targets: NDArray[np.float32], batch_size: int, seed: int
    ):
        """targets: (lines, D), by number."""
        self.examples, self.targets = examples, targets
        self.batch_size, self.seed = batch_size, seed
        self.batches_per_epoch = -(-len(examples) // batch_size)
        self._order = functools.lru_cache(2)(self._ordered)

    def batch(self, first: int, last: int) -> ArrayBatch:
        """The batch of the samples [first, last), with targets (B, D) float32."""
        epochs, places = np.divmod(np.arange(first, last), self.batches_per_epoch * self.batch_size)
        lines = np.array(
            [
                self._order(epoch)[place]
                for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)
            ]
        )
        batch = self.examples.batch(lines, sample_key(self.seed, epochs, lines))
        numbers = batch["targets"][:, 0]
        return {**batch, "targets": np.ascontiguousarray(self.targets[numbers], np.float32)}

    def _ordered(self, epoch: int) -> NDArray[np.int64]:
        """The lines of an epoch in the order of its samples."""
        count, slots = len(self.examples), self.batches_per_epoch * self.batch_size
        shuffled = permute(np.arange(slots) % count, count, self.seed, epoch)
        pools = np.arange(slots) // (POOL * self.batch_size)
        by_length = shuffled[np.lexsort((self.examples.lengths[shuffled], pools))]
        batches = by_length.reshape(-1, self.batch_size)
        order = permute(np.arange(len(batches)), len(batches), self.seed, epoch)
        return batches[order].ravel()


class TargetsManifest(files.Manifest):
    """Manifest of targets: an array of (lines, size) float32."""

    lines: files.Count
    size: files.Count

    noun = "targets of lines; run the step pretrain"
    kinds = ("targets",)
    required = (("targets.bin",),)


def open_targets(folder: Path) -> NDArray[np.float32]:
    """(lines, D), read where it is asked for; UserError where they are damaged."""
    manifest = files.read_artifact(folder, TargetsManifest)
    return np.memmap(folder / "targets.bin", "<f4", "r", shape=(manifest.lines, manifest.size))


def write_targets(
    folder: Path,
    examples: Examples,
    size: int,
    outputs: Callable[[Examples], NDArray[np.float32]],
    progress: Callable[[int], Any] = lambda _: None,
) -> None:
    """Write what `outputs` gives of all lines, (N, size), into the artifact `folder`, in blocks: a
    killed process goes on after the last whole one that it wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "targets.bin"
    block_bytes = 4 * size * BLOCK_LINES
    done = path.stat().st_size // block_bytes * BLOCK_LINES if path.exists() else 0
    with files.clear_write_errors(path), open(path, "ab") as file:
        file.truncate(4 * size * done)
        for first in range(done, len(examples), BLOCK_LINES):
            vectors = outputs(part_of(examples, first, first + BLOCK_LINES))
            file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())
            progress(min(first + BLOCK_LINES, len(examples)))
    files.write_manifest(folder, kind="targets", lines=len(examples), size=size)


def part_of(examples: Examples, first: int, last: int) -> Examples:
    """The examples [first, last)."""
    bounds = examples.bounds[first : last + 1]
    return Examples(
        examples.tokens[bounds[0] : bounds[-1]],
        bounds - bounds[0],
        examples.targets[first:last],
        examples.reads_start,
    )
