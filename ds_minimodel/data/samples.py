"""Samples of a text: the tokens of any sample of any epoch are found from its number alone."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError, one_line
from ds_minimodel.common.random import Stream, draws, permute, sample_key, stream_key, uniform
from ds_minimodel.common.vocabulary import FILLER
from ds_minimodel.data.store import TokenStore

# Tokens in memory while a table is built.
CHUNK_TOKENS = 1 << 24
_RECORD: np.dtype = np.dtype([("start", "<i8"), ("length", "<i4")])
# Folder of the store of the held-out documents, in the folder of the others' store.
HELD_OUT = "held_out"

Spans = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]


class BlockTable:
    """Start and length of every block of a store, 12 bytes each in memory.

    They are on disk from the first use on. The file, of numpy's form .npz with its checksum, has
    mode, length and the store's hash in its name, so it is never used for another store. Where
    ranks share a disk, let one open it before the others, or each builds it (with the same result).

    Args:
        store: the text that is cut into blocks.
        mode: "complete", "complete_doc" or "none", as data.blocks of a recipe.
        seq_length: tokens of a sample, a first token before the block included.
        folder: where the file lies; by default beside the store.

    Raises:
        UserError: where the file is damaged or the store holds no text.
    """

    def __init__(self, store: TokenStore, mode: str, seq_length: int, folder: Path | None = None):
        self.seq_length = seq_length
        name = f"{store.folder.name}.{mode}-{seq_length}-{store.sha256[:16]}.npz.blocks"
        path = (folder or store.folder.parent) / name
        if not path.exists():
            records = _build(store, mode, seq_length - 1)
            with files.atomic_write(path) as file:
                np.savez(file, blocks=records)
        with (
            one_line(path, "damaged table of blocks; delete it, it is built again"),
            np.load(path) as arrays,
        ):
            self._records = arrays["blocks"]

    def __len__(self) -> int:
        return len(self._records)

    def spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token and the count of tokens of each of these blocks, (B,) both."""
        records = self._records[indices]
        return records["start"], records["length"].astype(np.int64)


def _build(store: TokenStore, mode: str, limit: int) -> NDArray[np.void]:
    eos = store.vocabulary.require("eos", "a table of blocks")
    parts = list[NDArray[np.void]]()
    if mode == "none":
        spans = _even(store, limit)
    else:
        spans = _whole_sentences(store, eos, limit, within_documents=mode == "complete_doc")
    for starts, lengths in spans:
        records = np.empty(len(starts), _RECORD)
        records["start"] = starts
        records["length"] = lengths
        parts.append(records[records["length"] > 1])
    if not sum(map(len, parts)):
        raise UserError(f"{store.folder}: holds no text of two tokens or more; prepare more text")
    return np.concatenate(parts)


def _even(store: TokenStore, limit: int) -> Spans:
    """Yield starts and lengths of blocks of `limit` tokens, wherever sentences end."""
    step = max(1, CHUNK_TOKENS // limit) * limit
    for first in range(0, store.num_tokens, step):
        starts = np.arange(first, min(first + step, store.num_tokens), limit)
        yield starts, np.minimum(limit, store.num_tokens - starts)


def _whole_sentences(store: TokenStore, eos: int, limit: int, *, within_documents: bool) -> Spans:
    """Yield starts and lengths of blocks that end where sentences do, of a chunk at a time."""
    assert CHUNK_TOKENS > limit
    # Each chunk of the store begins where the last block of the one before has ended.
    start = 0
    while start < store.num_tokens:
        stop = min(start + CHUNK_TOKENS, store.num_tokens)
        # In a whole document an end of text may stand inside, or be missing where it was cut off.
        if store.whole_documents:
            is_end = np.zeros(stop - start, bool)
            is_end[store.document_ends(start, stop) - start - 1] = True
        else:
            is_end = store.read(start, stop) == eos
        starts, ends, num_packed = _pack(
            is_end,
            limit,
            within_documents=within_documents,
            whole_documents=store.whole_documents,
            is_last=stop == store.num_tokens,
        )
        yield start + starts, ends - starts
        start += num_packed


def _pack(
    is_end: NDArray[np.bool_],
    limit: int,
    *,
    within_documents: bool,
    whole_documents: bool,
    is_last: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Pack sentences greedily.

    Args:
        is_end: which tokens end a sentence.
        limit: tokens of the longest block.
        within_documents: whether a block ends where a document does.
        whole_documents: whether a document is one text, not a sentence a line.
        is_last: whether these are the last tokens of all; else packing stops where a block's end
            could depend on what follows.

    Returns:
        Starts and ends of the blocks, and how many tokens are packed.
    """
    ends = (np.flatnonzero(is_end) + 1).tolist()
    # Where a block must end: at a whole document's end, or else before the second of two </s>,
    # which is the blank line after a document.
    document_ends: list[int] = []
    if within_documents and whole_documents:
        document_ends = ends.copy()
    elif within_documents:
        document_ends = (np.flatnonzero(is_end[1:] & is_end[:-1]) + 1).tolist()
    # One that is never reached, so that there always is a next one.
    document_ends.append(len(is_end) + limit)
    borders: list[tuple[int, int]] = []
    start = 0
    sentence = 0
    document = 0
    stop = len(is_end) if is_last else len(is_end) - limit
    while start < stop:
        furthest = min(start + limit, document_ends[document])
        sentence = bisect.bisect_right(ends, furthest, sentence)
        end = ends[sentence - 1] if sentence else 0
        # A sentence longer than a block is cut.
        if end <= start:
            end = furthest
        borders.append((start, end))
        start = end
        if end == document_ends[document]:
            document += 1
            if not whole_documents:
                # The blank line is in no block.
                start = end + 1
    block_starts, block_ends = np.array(borders, np.int64).reshape(-1, 2).T
    return block_starts, block_ends, start


# The width of a batch is a multiple of this, so that there are fewer shapes and faster matrices.
_MULTIPLE = 8

Integers = NDArray[np.int64]
# Of samples (common/random.py).
Keys = NDArray[np.uint32]


class Samples(NamedTuple):
    """B samples.

    Attributes:
        tokens: (B, S), padded to the longest row rounded up to a multiple of 8, at most the
            sequence length.
        lengths: (B,) tokens before padding.
        keys: (B,), of all that is drawn for each.
        replayed: (B,), which are of another text, where some are.
        learned: (B, S), the tokens that are predicted, where some are not.
    """

    tokens: Integers
    lengths: Integers
    keys: Keys
    replayed: NDArray[np.bool_] | None = None
    learned: NDArray[np.bool_] | None = None


class SampleReader:
    """The samples of a run, numbered from 0 on through all epochs.

    Each epoch holds every block once. Order and keys are functions of (seed, epoch, block): a rank
    may take any slice of any step, and a resumed run goes on at its number of samples with nothing
    to restore.
    """

    def __init__(self, store: TokenStore, blocks: BlockTable, seed: int):
        self.store = store
        self.blocks = blocks
        self.seed = seed

    def read(self, first: int, last: int) -> Samples:
        """Return the samples [first, last)."""
        epochs, places = np.divmod(np.arange(first, last), len(self.blocks))
        indices = permute(places, len(self.blocks), seed=self.seed, epoch=epochs)
        keys = sample_key(self.seed, epochs, indices)
        tokens, lengths = self._read(indices)
        if not self.store.masked:
            return Samples(tokens, lengths, keys)
        # In a masked store, ids from the size of the vocabulary on are not learned.
        size = self.store.vocabulary.size
        return Samples(tokens % size, lengths, keys, learned=tokens < size)

    def _read(self, indices: Integers) -> tuple[Integers, Integers]:
        """Read blocks by their indices (B,).

        Returns:
            tokens (B, S), in each row <s> where the vocabulary has one, a block, and padding; and
            lengths (B,).
        """
        starts, sizes = self.blocks.spans(indices)
        bos = self.store.vocabulary.bos
        first = 0 if bos is None else 1
        lengths = sizes + first
        width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, self.blocks.seq_length)
        tokens = np.full((len(indices), width), FILLER, np.int64)
        tokens[:, :first] = bos or 0
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            tokens[row, first : first + size] = self.store.read(start, start + size)
        return tokens, lengths


class MixedReader:
    """Samples of a text, but for a share of those of another one in the same ids.

    Which they are is a function of the sample's key, so that it does not depend on ranks or
    interruptions either.
    """

    def __init__(
        self,
        reader: SampleReader | MixedReader,
        other: SampleReader | MixedReader,
        share: float,
        stream: Stream = Stream.REPLAY,
    ):
        """Mix two readers.

        Args:
            reader: of the text that is trained on.
            other: of the text that replaces some of its samples.
            share: of the samples that are replaced.
            stream: of the draws; a reader around another one needs another.
        """
        self.reader = reader
        self.other = other
        self.share = share
        self.stream = stream
        self.store: TokenStore = reader.store
        self.blocks: BlockTable = reader.blocks

    def read(self, first: int, last: int) -> Samples:
        """Return the samples [first, last)."""
        base = self.reader.read(first, last)
        others = self.other.read(first, last)
        replaced = uniform(draws(stream_key(base.keys, self.stream), 0, 1))[:, 0] < self.share
        width = max(base.tokens.shape[1], others.tokens.shape[1])
        tokens = np.full((len(replaced), width), FILLER, np.int64)
        learned = np.ones(tokens.shape, bool)
        for chosen, samples in ((~replaced, base), (replaced, others)):
            tokens[chosen, : samples.tokens.shape[1]] = samples.tokens[chosen]
            if samples.learned is not None:
                learned[chosen, : samples.tokens.shape[1]] = samples.learned[chosen]
        lengths = np.where(replaced, others.lengths, base.lengths)
        keys = np.where(replaced, others.keys, base.keys)
        return Samples(
            tokens=tokens,
            lengths=lengths,
            keys=keys,
            replayed=replaced,
            learned=None if learned.all() else learned,
        )
