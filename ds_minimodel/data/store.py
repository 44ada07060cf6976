"""Token stores: tokenised text on disk, memory-mapped, larger than memory at both ends.

A store is a folder of shards and a manifest. Shard 00000 is two files:
  00000.bin   the ids, uint16 where the vocabulary allows it, else uint32, little-endian, nothing else
  00000.idx   a header (_HEADER), then int64 offsets into .bin: documents + 1 of them
A document is its sentences, each ended by </s>, and one more </s>: the blank line after it, which
fairseq too writes as an empty sentence.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ds_minimodel.common import files
from ds_minimodel.common.errors import UserError

_MAGIC, _VERSION = b"DSMMTOKS", 1
_HEADER = struct.Struct("<8s I I Q Q Q 32s")  # magic, version, bytes an id, vocabulary, tokens, documents,
# SHA-256 of the tokenizer


def id_type(vocab_size: int) -> np.dtype:
    """The narrowest type on disk that holds every id of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_name(number: int) -> str:
    """Name of a shard's two files, without .bin and .idx."""
    return f"{number:05d}"


@contextlib.contextmanager
def write_shard(
    folder: str | Path, number: int, vocab_size: int, tokenizer_sha256: str
) -> Iterator[Callable[[ArrayLike, ArrayLike], None]]:
    """Yield a function add(tokens, lengths) that appends whole documents; the shard appears, complete,
    when the block ends without an error.

    `tokens` are the ids of some documents one after another, `lengths` the tokens of each.
    """
    path = Path(folder) / shard_name(number)
    dtype = id_type(vocab_size)
    lengths = [np.zeros(1, np.int64)]
    with files.atomic_write(path.with_suffix(".bin")) as file:

        def add(tokens: ArrayLike, document_lengths: ArrayLike) -> None:
            file.write(np.asarray(tokens, dtype).tobytes())
            lengths.append(np.asarray(document_lengths, np.int64))

        yield add
    offsets = np.cumsum(np.concatenate(lengths))
    with files.atomic_write(path.with_suffix(".idx")) as file:
        file.write(
            _HEADER.pack(
                _MAGIC,
                _VERSION,
                dtype.itemsize,
                vocab_size,
                offsets[-1],
                len(offsets) - 1,
                bytes.fromhex(tokenizer_sha256),
            )
        )
        file.write(offsets.astype("<i8").tobytes())


class TokenStore:
    """A store opened for reading, without reading its tokens.

    `tokenizer_sha256`, where given, is the tokenizer that the caller will use. Raises UserError where
    the store is missing, incomplete, damaged, of another version or of another tokenizer.
    """

    def __init__(self, folder: str | Path, tokenizer_sha256: str | None = None):
        self.folder = Path(folder)
        manifest = files.read_manifest(folder)
        if manifest.get("kind") != "token_store":
            raise UserError(f"{folder}: not a token store; run the step prepare")
        self.vocab_size = manifest["vocab_size"]
        self.tokenizer_sha256 = manifest["tokenizer_sha256"]
        if tokenizer_sha256 not in (None, self.tokenizer_sha256):
            raise UserError(
                f"{folder}: made with another tokenizer ({self.tokenizer_sha256[:12]}…, not "
                f"{tokenizer_sha256[:12]}…); run the step prepare again"
            )
        self.sha256 = files.sha256_of_json(manifest["files"])
        self._tokens: list[NDArray[np.integer]] = []  # memory maps, one a shard
        self._offsets: list[NDArray[np.int64]] = []
        for number in range(manifest["shards"]):
            self._open_shard(self.folder / shard_name(number))
        self._token_starts = _running_sum(self._tokens)
        self._document_starts = _running_sum([offsets[1:] for offsets in self._offsets])
        self.num_tokens = self._token_starts[-1]
        self.num_documents = self._document_starts[-1]

    def read(self, start: int, stop: int) -> NDArray[np.integer]:
        """Ids of the tokens [start, stop), counted over all shards; a view where one shard holds them."""
        assert 0 <= start <= stop <= self.num_tokens
        shard = bisect.bisect_right(self._token_starts, start, hi=len(self._tokens)) - 1
        parts = []
        while True:
            first = self._token_starts[shard]
            parts.append(self._tokens[shard][start - first : stop - first])
            start = self._token_starts[shard + 1]
            if stop <= start:
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            shard += 1

    def document(self, number: int) -> tuple[int, int]:
        """(start, stop) of a document's tokens, its last </s> included."""
        shard = bisect.bisect_right(self._document_starts, number) - 1
        at = number - self._document_starts[shard]
        start, stop = self._offsets[shard][at : at + 2].tolist()
        return self._token_starts[shard] + start, self._token_starts[shard] + stop

    def _open_shard(self, path: Path) -> None:
        index = path.with_suffix(".idx")
        with open(index, "rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise UserError(f"{index}: not the index of a token store; run the step prepare again")
        _, version, id_bytes, vocab_size, num_tokens, num_documents, tokenizer = _HEADER.unpack(header)
        if version != _VERSION:
            raise UserError(
                f"{index}: format version {version}, this program reads {_VERSION}; run the step prepare again"
            )
        if (vocab_size, tokenizer.hex()) != (self.vocab_size, self.tokenizer_sha256):
            raise UserError(f"{index}: of another vocabulary than the store; run the step prepare again")
        dtype = id_type(vocab_size)
        sizes = {index: _HEADER.size + 8 * (num_documents + 1), path.with_suffix(".bin"): num_tokens * dtype.itemsize}
        for part, size in sizes.items():
            if id_bytes != dtype.itemsize or part.stat().st_size != size:
                raise UserError(
                    f"{part}: not of the size that its header says ({size} bytes); run the step prepare again"
                )
        self._tokens.append(
            np.memmap(path.with_suffix(".bin"), dtype, "r") if num_tokens else np.empty(0, dtype)
        )  # an empty file cannot be mapped
        self._offsets.append(np.memmap(index, "<i8", "r", offset=_HEADER.size))


def _running_sum(parts: Sequence[Sized]) -> list[int]:
    """Start of each part when they are laid end to end, and the end of the last one."""
    return [0, *itertools.accumulate(map(len, parts))]
