"""Lines that a sentence encoder is trained on: tokens, target vectors, and the order of samples.

A line's number is its place in the pairs that train, in the token stores of both sides and in the
array of targets. A target is the vector that the untouched model has for the pair's source side.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common import files
from ds_minimodel.common.memory import keeping_blocks
from ds_minimodel.common.random import (
    Stream,
    draws,
    permute,
    sample_key,
    stream_key,
    uniform,
)
from ds_minimodel.data.store import Reader, TokenStore, write_shard
from ds_minimodel.evaluation.batches import ArrayBatch, Examples
from ds_minimodel.evaluation.sentences import prompt_tokens
from ds_minimodel.text.pairs import Pair
from ds_minimodel.tokenizers.tokenizer import Tokenizer
from ds_minimodel.training.world import World

SOURCE = "source"  # folder of the store of the other side
SHARD_LINES = 1 << 20
POOL = 8  # batches of lines that are sorted by length together
BLOCK_LINES = 512  # that the untouched model reads before they are on disk


def write_sides(
    folder: Path,
    lines: Sequence[Pair],
    of_source: Tokenizer,
    of_target: Tokenizer,
    max_length: int,
    names: Sequence[str] = (),
    prompt: str = "",
) -> int:
    """Write both sides of the pairs whose source side is short enough into token stores.

    Args:
        folder: store of the target sides; that of the source sides is its folder SOURCE.
        lines: the pairs.
        of_source: tokenizer of the source sides.
        of_target: tokenizer of the target sides.
        max_length: largest count of tokens of a source side, with what begins and ends a text.
        names: what manifests say of the texts.
        prompt: text before both sides.

    Returns:
        The count of pairs that were written.
    """
    frame = sum(map(len, of_source.vocabulary.frame))
    sources = of_source.encode([prompt + pair.source for pair in lines])
    kept = [index for index, ids in enumerate(sources) if len(ids) + frame <= max_length]
    targets = of_target.encode([prompt + pair.target for pair in lines])
    with files.atomic_folder(folder) as out:
        (out / SOURCE).mkdir()
        kept_sources = [sources[index] for index in kept]
        kept_targets = [targets[index] for index in kept]
        _write_store(out / SOURCE, of_source, kept_sources, names=names, prompt=prompt)
        _write_store(out, of_target, kept_targets, names=names, prompt=prompt)
    return len(kept)


def _write_store(
    folder: Path,
    tokenizer: Tokenizer,
    lines: Sequence[Sequence[int]],
    names: Sequence[str],
    prompt: str,
) -> None:
    """Write a token store in which each line is a document: its ids, if any, and the end of a text.

    `names` is what the manifest says of the texts, `prompt` the text before each of them.
    """
    eos = tokenizer.vocabulary.require("eos", "a token store")
    # Where there are no lines, as of a dictionary alone, a store is one empty shard.
    shards = range(0, max(1, len(lines)), SHARD_LINES)
    for number, first in enumerate(shards):
        part = lines[first : first + SHARD_LINES]
        lengths = [len(ids) + 1 for ids in part]
        tokens = np.fromiter(
            itertools.chain.from_iterable((*ids, eos) for ids in part), np.int64, sum(lengths)
        )
        with write_shard(folder, number, tokenizer.vocabulary.size, tokenizer.sha256) as add:
            add(tokens, lengths)
    files.write_manifest(
        folder,
        kind="token_store",
        shards=len(shards),
        tokenizer_sha256=tokenizer.sha256,
        **tokenizer.vocabulary.facts(),
        whole_documents=True,
        documents=len(lines),
        tokens=sum(map(len, lines)) + len(lines),
        text=[*names],
        prompt_tokens=prompt_tokens(tokenizer, prompt),
    )


def examples_of(store: TokenStore, length: int) -> Examples:
    """Return the lines of a store as sequences of at most `length` tokens.

    A sequence has the tokens that begin and end a text. Its target is its line's number.
    """
    before, after = store.vocabulary.frame
    room = length - len(before) - len(after)
    ends = store.document_ends(0, store.num_tokens)
    starts = np.concatenate([[0], ends[:-1]])
    # A document of the store ends with the end of a text, which is not of the line.
    sizes = np.minimum(ends - starts - 1, room)
    bounds = np.concatenate([[0], np.cumsum(sizes + len(before) + len(after))])
    tokens = np.empty(bounds[-1], np.int32)
    whole = store.read(0, store.num_tokens)
    lines = zip(starts.tolist(), sizes.tolist(), bounds.tolist(), strict=False)
    for start, size, place in lines:
        first = place + len(before)
        tokens[place:first] = before
        tokens[first : first + size] = whole[start : start + size]
        tokens[first + size : first + size + len(after)] = after
    return Examples(
        tokens,
        bounds,
        np.arange(len(sizes))[:, None],
        reads_start=False,
        prompts=np.full(len(sizes), store.prompt_tokens) if store.prompt_tokens else None,
    )


class Rows(Protocol):
    """Rows of (lines, D) float32, in an array or in a file."""

    def __getitem__(self, numbers: NDArray[np.int64], /) -> NDArray[np.float32]: ...


class LineSampler:
    """Batches of lines with their targets, as functions of the samples' global numbers.

    An epoch is whole batches: it has every line once, and some of its first ones again where they
    fill its last batch. Batches are of lines of like length, in random order. All of it is a
    function of (seed, epoch, step).
    """

    def __init__(
        self,
        examples: Examples,
        targets: Rows,
        batch_size: int,
        seed: int,
        others: Examples | None = None,
        share: float = 0.0,
    ):
        """Make the sampler.

        Args:
            examples: the lines.
            targets: (lines, D) float32, by number.
            batch_size: lines of a step.
            seed: decides the order.
            others: the other sides of the lines, which have the same targets.
            share: of the samples that are in the place of their other side.
        """
        self.examples = examples
        self.targets = targets
        self.others = others
        self.batch_size = batch_size
        self.seed = seed
        self.share = share
        self.batches_per_epoch = -(-len(examples) // batch_size)
        self._order = functools.lru_cache(2)(self._ordered)

    def batch(self, first: int, last: int) -> ArrayBatch:
        """Return the samples [first, last), with targets (B, D) float32."""
        epochs, slots = np.divmod(np.arange(first, last), self.batches_per_epoch * self.batch_size)
        lines = np.array(
            [
                self._order(epoch)[slot]
                for epoch, slot in zip(epochs.tolist(), slots.tolist(), strict=True)
            ]
        )
        keys = sample_key(self.seed, epochs, lines)
        targets = self.targets[lines]
        if self.others is None:
            return {**self.examples.batch(lines, keys), "targets": targets}
        is_other = uniform(draws(stream_key(keys, Stream.REPLAY), 0, 1))[:, 0] < self.share
        # The other sides stand behind all lines.
        index = np.where(is_other, lines + len(self.examples), lines)
        return {**self._both.batch(index, keys), "targets": targets}

    @functools.cached_property
    def _both(self) -> Examples:
        assert self.others is not None
        return together(self.examples, self.others)

    def _ordered(self, epoch: int) -> NDArray[np.int64]:
        """Return the lines of an epoch in the order of its samples."""
        count = len(self.examples)
        slots = self.batches_per_epoch * self.batch_size
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


class Targets:
    """Targets on disk, of which rows are read: `targets[numbers]` is (N, D) float32."""

    def __init__(self, folder: Path):
        """Open the targets; UserError where they are damaged."""
        manifest = files.read_artifact(folder, TargetsManifest)
        self.shape = manifest.lines, manifest.size
        self._read = Reader().of(folder / "targets.bin")

    def __getitem__(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        num_bytes = 4 * self.shape[1]
        rows = [self._read(number * num_bytes, (number + 1) * num_bytes) for number in numbers]
        return np.frombuffer(bytearray(b"".join(rows)), "<f4").reshape(len(rows), -1)

    def whole(self) -> NDArray[np.float32]:
        """Return all rows."""
        num_lines, size = self.shape
        return np.frombuffer(self._read(0, 4 * num_lines * size), "<f4").reshape(self.shape)


def write_targets(
    folder: Path,
    examples: Examples,
    size: int,
    outputs: Callable[[Examples], NDArray[np.float32]],
    world: World,
    progress: Callable[[int], Any] = lambda _: None,
) -> None:
    """Write what `outputs` gives of all lines, (N, size), into the artifact `folder`.

    Each rank computes whole blocks, so that the count of ranks changes no bit. A killed process
    goes on after the last block that it wrote.
    """
    path = folder / "targets.bin"
    data = world.data
    block_bytes = 4 * size * BLOCK_LINES

    def begin() -> int:
        folder.mkdir(parents=True, exist_ok=True)
        done = path.stat().st_size // block_bytes * BLOCK_LINES if path.exists() else 0
        with files.clear_write_errors(path), open(path, "ab") as file:
            file.truncate(4 * size * done)
        return done

    def append(vectors: Sequence[NDArray[np.float32]]) -> None:
        with files.clear_write_errors(path), open(path, "ab") as file:
            for block_vectors in vectors:
                file.write(np.ascontiguousarray(block_vectors, "<f4").tobytes())
            file.flush()
            os.fsync(file.fileno())

    lines = BLOCK_LINES * data.size
    with keeping_blocks():
        for first in range(world.broadcast_from_rank0(begin), len(examples), lines):
            start = first + BLOCK_LINES * data.rank
            block = part_of(examples, start, start + BLOCK_LINES)
            # Ranks that share a replica have the same block, which is written once.
            gathered = dict(world.all_gather_object(partial(_with_rank, data.rank, outputs, block)))
            blocks = [gathered[rank] for rank in sorted(gathered)]
            world.broadcast_from_rank0(partial(append, blocks))
            progress(min(first + lines, len(examples)))
    facts = {"lines": len(examples), "size": size}
    world.broadcast_from_rank0(lambda: files.write_manifest(folder, kind="targets", **facts))


def _with_rank(
    rank: int, outputs: Callable[[Examples], NDArray[np.float32]], block: Examples
) -> tuple[int, NDArray[np.float32]]:
    """Return the rank, and a block's vectors; none where it lies behind the last line."""
    return rank, outputs(block) if len(block) else np.zeros(0, np.float32)


def part_of(examples: Examples, first: int, last: int) -> Examples:
    """Return the examples [first, last), as far as there are any."""
    first = min(first, len(examples))
    bounds = examples.bounds[first : last + 1]
    return Examples(
        examples.tokens[bounds[0] : bounds[-1]],
        bounds - bounds[0],
        examples.targets[first:last],
        examples.reads_start,
        prompts=None if examples.prompts is None else examples.prompts[first:last],
    )


def together(*parts: Examples) -> Examples:
    """Return the examples of several, one after another."""
    prompts = [part.prompts for part in parts if part.prompts is not None]
    starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
    bounds = [part.bounds[1:] + start for part, start in zip(parts, starts, strict=False)]
    return Examples(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([[0], *bounds]),
        np.concatenate([part.targets for part in parts]),
        parts[0].reads_start,
        prompts=np.concatenate(prompts) if len(prompts) == len(parts) else None,
    )
