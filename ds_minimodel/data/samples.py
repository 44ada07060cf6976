"""Samples of a text: the tokens of any sample of any epoch, found from its number alone."""

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

CHUNK_TOKENS = 1 << 24  # tokens in memory while a table is built
_RECORD: np.dtype = np.dtype([("start", "<i8"), ("length", "<i4")])

Spans = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]


class BlockTable:
    """Start and length of every block of a store, 12 bytes each in memory; on disk from the first
    use on.

    The file, of numpy's form .npz with its checksum, lies beside the store, or in `folder`, and has
    mode, length and the store's hash in its name, so it is never used for another store. Where
    ranks share a disk, let one open it before the others, or each builds it (with the same result).
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

    def spans(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First token and number of tokens (int64) of each of the blocks `numbers`."""
        records = self._records[numbers]
        return records["start"], records["length"].astype(np.int64)


def _build(store: TokenStore, mode: str, limit: int) -> NDArray[np.void]:
    eos, parts = store.vocabulary.require("eos", "a table of blocks"), list[NDArray[np.void]]()
    for starts, lengths in (
        _even(store, limit)
        if mode == "none"
        else _whole_sentences(store, eos, limit, mode == "complete_doc")
    ):
        records = np.empty(len(starts), _RECORD)
        records["start"], records["length"] = starts, lengths
        parts.append(records[records["length"] > 1])
    if not sum(map(len, parts)):
        raise UserError(f"{store.folder}: holds no text of two tokens or more; prepare more text")
    return np.concatenate(parts)


def _even(store: TokenStore, limit: int) -> Spans:
    step = max(1, CHUNK_TOKENS // limit) * limit
    for first in range(0, store.num_tokens, step):
        starts = np.arange(first, min(first + step, store.num_tokens), limit)
        yield starts, np.minimum(limit, store.num_tokens - starts)


def _whole_sentences(store: TokenStore, eos: int, limit: int, within_documents: bool) -> Spans:
    """Starts and lengths, a chunk of the store at a time; each chunk is read from a block's start
    on.
    """
    assert CHUNK_TOKENS > limit
    start = 0
    while start < store.num_tokens:
        stop = min(start + CHUNK_TOKENS, store.num_tokens)
        if store.whole_documents:  # where an end of text may stand inside one, or not at its end
            is_end = np.zeros(stop - start, bool)
            is_end[store.document_ends(start, stop) - start - 1] = True
        else:
            is_end = store.read(start, stop) == eos
        is_last = stop == store.num_tokens
        starts, ends, done = _pack(is_end, limit, within_documents, is_last, store.whole_documents)
        yield start + starts, ends - starts
        start += done


def _pack(
    is_end: NDArray[np.bool_],
    limit: int,
    within_documents: bool,
    is_last: bool,
    whole_documents: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Greedy packing of sentences: starts and ends of the blocks, and how many tokens are done
    with.

    is_end: which tokens end a sentence. Unless these are the last tokens, it stops where a block's
    end could depend on what follows.
    """
    ends = (np.flatnonzero(is_end) + 1).tolist()
    # A block may not go on past the end of a document: the second of two </s>, which is the blank
    # line after it.
    blanks: list[int] = []
    if within_documents:
        blanks += (
            ends if whole_documents else (np.flatnonzero(is_end[1:] & is_end[:-1]) + 1).tolist()
        )
    blanks.append(len(is_end) + limit)  # never reached
    borders: list[tuple[int, int]] = []
    start, sentence, document = 0, 0, 0
    stop = len(is_end) if is_last else len(is_end) - limit
    while start < stop:
        furthest = min(start + limit, blanks[document])
        sentence = bisect.bisect_right(ends, furthest, sentence)
        end = ends[sentence - 1] if sentence else 0
        if end <= start:
            end = furthest  # a sentence longer than a block
        borders.append((start, end))
        start = end
        if end == blanks[document]:
            start, document = end + (not whole_documents), document + 1
    block_starts, block_ends = np.array(borders, np.int64).reshape(-1, 2).T
    return block_starts, block_ends, start


_MULTIPLE = 8  # batches are padded to a multiple: fewer shapes, faster matrices

Integers = NDArray[np.int64]
Keys = NDArray[np.uint32]  # of samples (common/random.py)


class Samples(NamedTuple):
    """B samples: tokens (B, S), padded to the longest row rounded up to a multiple of 8, at most
    the sequence length; lengths (B,); keys (B,), of all that is drawn for each; replayed (B,),
    which are of another text, where some are; learned (B, S), the tokens that are predicted, where
    some are not.
    """

    tokens: Integers
    lengths: Integers
    keys: Keys
    replayed: NDArray[np.bool_] | None = None
    learned: NDArray[np.bool_] | None = None


class SampleReader:
    """The samples of a run, numbered from 0 on through all epochs; each epoch holds every block
    once.

    Order and keys are functions of (seed, epoch, block): a rank may take any slice of any step, and
    a resumed run goes on at its number of samples with nothing to restore.
    """

    def __init__(self, store: TokenStore, blocks: BlockTable, seed: int):
        self.store, self.blocks, self.seed = store, blocks, seed

    def read(self, first: int, last: int) -> Samples:
        """The samples [first, last)."""
        epochs, places = np.divmod(np.arange(first, last), len(self.blocks))
        numbers = permute(places, len(self.blocks), self.seed, epochs)
        keys, (tokens, lengths) = sample_key(self.seed, epochs, numbers), self._read(numbers)
        if not self.store.masked:
            return Samples(tokens, lengths, keys)
        size = self.store.vocabulary.size
        return Samples(tokens % size, lengths, keys, learned=tokens < size)

    def _read(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Tokens (B, S), each row <s> (where the vocabulary has one) and a block and padding;
        lengths (B,).
        """
        starts, sizes = self.blocks.spans(numbers)
        bos = self.store.vocabulary.bos
        first = 0 if bos is None else 1
        lengths = sizes + first
        width = min(-(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE, self.blocks.seq_length)
        tokens = np.full((len(numbers), width), FILLER, np.int64)
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
        """stream: another one for each reader around another."""
        self.reader, self.other, self.share, self.stream = reader, other, share, stream
        self.store: TokenStore = reader.store
        self.blocks: BlockTable = reader.blocks

    def read(self, first: int, last: int) -> Samples:
        """The samples [first, last)."""
        own, others = self.reader.read(first, last), self.other.read(first, last)
        replaced = uniform(draws(stream_key(own.keys, self.stream), 0, 1))[:, 0] < self.share
        width = max(own.tokens.shape[1], others.tokens.shape[1])
        tokens = np.full((len(replaced), width), FILLER, np.int64)
        learned = np.ones(tokens.shape, bool)
        for chosen, samples in ((~replaced, own), (replaced, others)):
            tokens[chosen, : samples.tokens.shape[1]] = samples.tokens[chosen]
            if samples.learned is not None:
                learned[chosen, : samples.tokens.shape[1]] = samples.learned[chosen]
        lengths, keys = (
            np.where(replaced, others.lengths, own.lengths),
            np.where(replaced, others.keys, own.keys),
        )
        return Samples(tokens, lengths, keys, replaced, None if learned.all() else learned)


HELD_OUT = "held_out"  # folder of the store of these documents, in that of the others
