"""Token stores are tokenised text on disk, which need not fit into memory.

A store is a folder of shards and a manifest. Shard 00000 is two files:
  00000.bin   the ids alone, uint16 where the vocabulary allows it, else uint32, little-endian
  00000.idx   a header (_HEADER), then int64 offsets into .bin: documents + 1 of them
A document is its sentences, each ended by the vocabulary's end of text, </s>, and one more </s>:
the blank line after it, which fairseq too writes as an empty sentence. A whole document is one
text, which ends in </s> or was cut off. In a masked store a token of which nothing is learned is
written as its id plus the vocabulary's size.
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

_MAGIC = b"DSMMTOKS"
_VERSION = 1
# Magic, version, bytes of an id, count of ids, tokens, documents, SHA-256 of the tokenizer.
_HEADER = struct.Struct("<8s I I Q Q Q 32s")


def id_type(vocab_size: int) -> np.dtype:
    """Return the narrowest type on disk that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(index: int) -> str:
    """Return the name of a shard's files, without .bin and .idx."""
    return f"{index:05d}"


class StoreManifest(VocabularyManifest):
    """Manifest of a token store.

    Attributes:
        tokenizer_sha256: of the tokenizer.
        shards: how many there are.
        whole_documents: whether a document is one text, not a sentence a line.
        masked: whether nothing is learned of some tokens.
        ends: tokens that end an answer of its dialogues.
        prompt_tokens: count of those that every document begins with, before its text.
    """

    tokenizer_sha256: files.Sha256
    shards: Annotated[int, Field(ge=0, le=99_999)]
    whole_documents: bool = False
    masked: bool = False
    ends: list[int] = []
    prompt_tokens: files.Count = 0

    noun = "a token store; run the step prepare"
    kinds = ("token_store",)


@contextlib.contextmanager
def write_shard(
    folder: str | Path, index: int, num_ids: int, tokenizer_sha256: str
) -> Iterator[Callable[[ArrayLike, ArrayLike], None]]:
    """Write a shard, which appears, complete, when the block ends without an error.

    Args:
        folder: folder of the store.
        index: of the shard, from 0.
        num_ids: every id of the store is below it.
        tokenizer_sha256: SHA-256 of the tokenizer.

    Yields:
        A function add(tokens, lengths) that appends whole documents: their ids one after another,
        and the count of tokens of each.
    """
    path = Path(folder) / shard_name(index)
    dtype = id_type(num_ids)
    lengths = [np.zeros(1, np.int64)]
    with files.atomic_write(path.with_suffix(".bin")) as file:

        def add(tokens: ArrayLike, document_lengths: ArrayLike) -> None:
            file.write(np.asarray(tokens, dtype).tobytes())
            lengths.append(np.asarray(document_lengths, np.int64))

        yield add
    offsets = np.cumsum(np.concatenate(lengths))
    with files.atomic_write(path.with_suffix(".idx")) as file:
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            dtype.itemsize,
            num_ids,
            offsets[-1],
            len(offsets) - 1,
            bytes.fromhex(tokenizer_sha256),
        )
        file.write(header)
        file.write(offsets.astype("<i8").tobytes())


class _OpenFile:
    """A file that is open for reading as long as this object lives."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


# A function that reads the bytes [first, last) of a file.
Read = Callable[[int, int], bytes]


class Reader:
    """A reader of parts of any number of files.

    The last used ones stay open, up to half of what the process may open. Files are read, not
    mapped: a map takes a descriptor and page tables for each process, reads 128 KiB for a sample of
    one, and a disk that fails under it kills the process.
    """

    def __init__(self) -> None:
        # The limit is -1 where there is none.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._open = functools.lru_cache(limit // 2 if limit > 0 else None)(_OpenFile)

    def of(self, path: Path) -> Read:
        """Return a function that reads `path`, and raises UserError where it cannot."""
        # A string is opened and hashed faster than a path.
        name = str(path)

        def read(first: int, last: int) -> bytes:
            try:
                # The file is held, so that it is not closed, and its descriptor given to another
                # file, while this one is read.
                file = self._open(name)
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

    Args:
        folder: folder of the store.
        tokenizer_sha256: of the tokenizer that the caller will use, where it uses one.
        verify: whether every byte is compared with the manifest, else sizes alone.

    Raises:
        UserError: where the store is missing, incomplete, damaged, of another version or of
            another tokenizer.
    """

    def __init__(
        self, folder: str | Path, tokenizer_sha256: str | None = None, *, verify: bool = False
    ):
        self.folder = Path(folder)
        manifest = files.read_artifact(folder, StoreManifest, verify=verify)
        self.vocabulary = manifest.vocabulary(folder)
        self.tokenizer_sha256 = manifest.tokenizer_sha256
        self.whole_documents = manifest.whole_documents
        self.masked = manifest.masked
        self.prompt_tokens = manifest.prompt_tokens
        if tokenizer_sha256 not in (None, self.tokenizer_sha256):
            raise UserError(
                f"{folder}: made with another tokenizer ({self.tokenizer_sha256[:12]}…, not "
                f"{tokenizer_sha256[:12]}…); run the step prepare again"
            )
        self.sha256 = files.sha256_of_json(manifest.model_dump()["files"])
        num_ids = self.vocabulary.size
        if self.masked:
            num_ids *= 2
        self._reader = Reader()
        self._dtype = id_type(num_ids)
        # What the header of each shard begins with.
        self._kind = (_MAGIC, _VERSION, self._dtype.itemsize, num_ids)
        self._shards = [
            self._open_shard(self.folder / shard_name(index)) for index in range(manifest.shards)
        ]
        # The start of each shard, and behind them the end of the last.
        token_counts = (shard.num_tokens for shard in self._shards)
        document_counts = (shard.num_documents for shard in self._shards)
        self._token_starts = [*itertools.accumulate(token_counts, initial=0)]
        self._document_starts = [*itertools.accumulate(document_counts, initial=0)]
        self.num_tokens = self._token_starts[-1]
        self.num_documents = self._document_starts[-1]

    def read(self, start: int, stop: int) -> NDArray[np.integer]:
        """Return ids of the tokens [start, stop), counted over all shards; read-only."""
        assert 0 <= start <= stop <= self.num_tokens
        shard = bisect.bisect_right(self._token_starts, start, hi=len(self._shards)) - 1
        id_bytes = self._dtype.itemsize
        data = b""
        while True:
            shard_start = self._token_starts[shard]
            shard_stop = self._token_starts[shard + 1]
            first_byte = (start - shard_start) * id_bytes
            last_byte = (min(stop, shard_stop) - shard_start) * id_bytes
            data += self._shards[shard].tokens(first_byte, last_byte)
            if stop <= shard_stop:
                return np.frombuffer(data, self._dtype)
            # The rest lies at the beginning of the next shard.
            start = shard_stop
            shard += 1

    def document(self, index: int) -> tuple[int, int]:
        """Return (start, stop) of a document's tokens, its last </s> included."""
        shard = bisect.bisect_right(self._document_starts, index) - 1
        # A document's offsets are its start and the next one's, of 8 bytes each.
        first_byte = _HEADER.size + 8 * (index - self._document_starts[shard])
        offsets = self._shards[shard].offsets(first_byte, first_byte + 16)
        start, stop = np.frombuffer(offsets, "<i8").tolist()
        return self._token_starts[shard] + start, self._token_starts[shard] + stop

    def document_ends(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ends, (documents,), of all documents that end in (start, stop]."""
        parts = [np.zeros(0, np.int64)]
        for shard, (first, end) in zip(
            self._shards, itertools.pairwise(self._token_starts), strict=True
        ):
            if first < stop and start < end:
                data = shard.offsets(_HEADER.size + 8, _HEADER.size + 8 * (shard.num_documents + 1))
                ends = first + np.frombuffer(data, "<i8")
                parts.append(ends[(ends > start) & (ends <= stop)])
        return np.concatenate(parts)

    def _open_shard(self, path: Path) -> _Shard:
        """Open a shard; the sizes of its files were compared with the manifest."""
        data_path = path.with_suffix(".bin")
        index_path = path.with_suffix(".idx")
        with open(index_path, "rb") as file:
            *kind, num_tokens, num_documents, tokenizer = _HEADER.unpack(file.read(_HEADER.size))
        if (*kind, tokenizer.hex()) != (*self._kind, self.tokenizer_sha256):
            raise UserError(
                f"{index_path}: not of this store, or of another version; "
                "run the step prepare again"
            )
        return _Shard(
            num_tokens=num_tokens,
            num_documents=num_documents,
            tokens=self._reader.of(data_path),
            offsets=self._reader.of(index_path),
        )
