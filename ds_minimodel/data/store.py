"""Token stores: tokenised text on disk, which need not fit into memory to be written or read.

A store is a folder of shards and a manifest. Shard 00000 is two files:
  00000.bin   the ids, uint16 where the vocabulary allows it, else uint32, little-endian, nothing else
  00000.idx   a header (_HEADER), then int64 offsets into .bin: documents + 1 of them
A document is its sentences, each ended by the vocabulary's end of text, </s>, and one more </s>:
the blank line after it, which fairseq too writes as an empty sentence. A whole document is one
text, which ends in </s> or was cut off. Where a store is masked, an id from the vocabulary's size
on is that id less the size, of which nothing is learned.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError
from ds_minimodel.common.vocabulary import VocabularyManifest

_MAGIC, _VERSION = b"DSMMTOKS", 1
_HEADER = struct.Struct("<8s I I Q Q Q 32s")  # magic, version, bytes an id, ids, tokens, documents,
# SHA-256 of the tokenizer


def id_type(vocab_size: int) -> np.dtype:
    """The narrowest type on disk that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(number: int) -> str:
    """Name of a shard's files, without .bin and .idx."""
    return f"{number:05d}"


class StoreManifest(VocabularyManifest):
    """Manifest of a token store."""

    tokenizer_sha256: files.Sha256
    shards: Annotated[int, Field(ge=0, le=99_999)]
    whole_documents: bool = False  # whether a document is one text, not a sentence a line
    masked: bool = False  # whether nothing is learned of some tokens
    ends: list[int] = []  # tokens that end an answer of its dialogues

    noun = "a token store; run the step prepare"
    kinds = ("token_store",)


@contextlib.contextmanager
def write_shard(
    folder: str | Path, number: int, ids: int, tokenizer_sha256: str
) -> Iterator[Callable[[ArrayLike, ArrayLike], None]]:
    """Yield a function add(tokens, lengths) that appends whole documents; the shard appears,
    complete, when the block ends without an error.

    `tokens` are the ids, below `ids`, of some documents one after another, `lengths` the tokens of
    each.
    """
    path = Path(folder) / shard_name(number)
    dtype = id_type(ids)
    lengths = [np.zeros(1, np.int64)]
    with files.atomic_write(path.with_suffix(".bin")) as file:

        def add(tokens: ArrayLike, document_lengths: ArrayLike) -> None:
            file.write(np.asarray(tokens, dtype).tobytes())
            lengths.append(np.asarray(document_lengths, np.int64))

        yield add
    offsets = np.cumsum(np.concatenate(lengths))
    with files.atomic_write(path.with_suffix(".idx")) as file:
        facts = (
            dtype.itemsize,
            ids,
            offsets[-1],
            len(offsets) - 1,
            bytes.fromhex(tokenizer_sha256),
        )
        file.write(_HEADER.pack(_MAGIC, _VERSION, *facts))
        file.write(offsets.astype("<i8").tobytes())


class _OpenFile:
    """A file that is open for reading as long as this object lives."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


Read = Callable[[int, int], bytes]  # of the bytes [first, last)


class Reader:
    """Reads parts of any number of files; the last used stay open, up to half of what the process
    may open.

    Files are read, not mapped: a map takes a descriptor and page tables for each process, reads 128
    KiB for a sample of one, and a disk that fails under it kills the process.
    """

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # -1: none
        self._open = functools.lru_cache(limit // 2 if limit > 0 else None)(_OpenFile)

    def of(self, path: Path) -> Read:
        """A function that reads `path`; UserError where it cannot."""

        name = str(path)  # opened and hashed faster

        def read(first: int, last: int) -> bytes:
            try:
                file = self._open(
                    name
                )  # held, so that no other thread's file takes its place and number meanwhile
                data = os.pread(file.descriptor, last - first, first)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be read ({error.strerror}); fix this and run again"
                ) from None
            if len(data) < last - first:
                raise UserError(f"{path}: shorter than it was; put it back from a copy")
            return data

        return read


class _Shard(NamedTuple):
    """A shard open for reading: its .bin and its .idx, header included."""

    num_tokens: int
    num_documents: int
    tokens: Read
    offsets: Read


class TokenStore:
    """A store opened for reading.

    `tokenizer_sha256`, where given, is the tokenizer that the caller will use. verify: read every
    byte and compare it with the manifest, else sizes alone. Raises UserError where the store is
    missing, incomplete, damaged, of another version or of another tokenizer.
    """

    def __init__(
        self, folder: str | Path, tokenizer_sha256: str | None = None, verify: bool = False
    ):
        self.folder = Path(folder)
        manifest = files.read_artifact(folder, StoreManifest, verify)
        self.vocabulary = manifest.vocabulary(folder)
        self.tokenizer_sha256, self.whole_documents = (
            manifest.tokenizer_sha256,
            manifest.whole_documents,
        )
        self.masked = manifest.masked
        if tokenizer_sha256 not in (None, self.tokenizer_sha256):
            raise UserError(
                f"{folder}: made with another tokenizer ({self.tokenizer_sha256[:12]}…, not "
                f"{tokenizer_sha256[:12]}…); run the step prepare again"
            )
        self.sha256 = files.sha256_of_json(manifest.model_dump()["files"])
        ids = self.vocabulary.size * (2 if self.masked else 1)
        self._reader, self._dtype = Reader(), id_type(ids)
        self._kind = _MAGIC, _VERSION, self._dtype.itemsize, ids
        self._shards = [
            self._open_shard(self.folder / shard_name(number)) for number in range(manifest.shards)
        ]
        # Of each shard, and behind them the end of the last.
        self._token_starts = [0, *itertools.accumulate(shard.num_tokens for shard in self._shards)]
        self._document_starts = [
            0,
            *itertools.accumulate(shard.num_documents for shard in self._shards),
        ]
        self.num_tokens = self._token_starts[-1]
        self.num_documents = self._document_starts[-1]

    def read(self, start: int, stop: int) -> NDArray[np.integer]:
        """Ids of the tokens [start, stop), counted over all shards, (stop - start,); read-only."""
        assert 0 <= start <= stop <= self.num_tokens
        shard, id_bytes = (
            bisect.bisect_right(self._token_starts, start, hi=len(self._shards)) - 1,
            self._dtype.itemsize,
        )
        parts = []
        while True:
            first, end = self._token_starts[shard : shard + 2]
            parts.append(
                self._shards[shard].tokens(
                    (start - first) * id_bytes, (min(stop, end) - first) * id_bytes
                )
            )
            start = end
            if stop <= start:
                return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), self._dtype)
            shard += 1

    def document(self, number: int) -> tuple[int, int]:
        """(start, stop) of a document's tokens, its last </s> included."""
        shard = bisect.bisect_right(self._document_starts, number) - 1
        at = _HEADER.size + 8 * (number - self._document_starts[shard])
        start, stop = np.frombuffer(self._shards[shard].offsets(at, at + 16), "<i8").tolist()
        return self._token_starts[shard] + start, self._token_starts[shard] + stop

    def document_ends(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where the documents end, (documents,), that end in (start, stop]."""
        parts = [np.zeros(0, np.int64)]
        for shard, (first, end) in zip(
            self._shards, itertools.pairwise(self._token_starts), strict=True
        ):
            if first < stop and start < end:
                data = shard.offsets(_HEADER.size + 8, _HEADER.size + 8 * (shard.num_documents + 1))
                ends = first + np.frombuffer(data, "<i8")
                parts.append(
                    ends[
                        np.searchsorted(ends, start, "right") : np.searchsorted(ends, stop, "right")
                    ]
                )
        return np.concatenate(parts)

    def _open_shard(self, path: Path) -> _Shard:
        """A shard of which the manifest has the sizes of both files, and with `verify` their
        hashes.
        """
        data, index = path.with_suffix(".bin"), path.with_suffix(".idx")
        with open(index, "rb") as file:
            *kind, num_tokens, num_documents, tokenizer = _HEADER.unpack(file.read(_HEADER.size))
        if (*kind, tokenizer.hex()) != (*self._kind, self.tokenizer_sha256):
            raise UserError(
                f"{index}: not of this store, or of another version; run the step prepare again"
            )
        return _Shard(num_tokens, num_documents, self._reader.of(data), self._reader.of(index))
