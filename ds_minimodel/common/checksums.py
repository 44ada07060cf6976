"""Checksums of the pieces of large files, compared where a piece is read for the first time.

A file of hundreds of gigabytes cannot be hashed at every start. CRC-32 finds what disks and copies do to a piece; that
the checksums are the right ones is up to who keeps them (a manifest with their SHA-256). Files are read, not mapped:
a map takes a descriptor and page tables for each process, reads 128 KiB for a sample of one, and a disk that fails
under it kills the process.
"""

import functools
import os
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.errors import UserError

PIECE_BYTES = 1 << 13  # so small that the first steps, whose samples lie in as many pieces, are not slower either
Checksums = NDArray[np.uint32]
Read = Callable[[int, int], bytes]  # of the bytes [first, last)


def checksums_of(file: IO[bytes]) -> Checksums:
    """Checksum of each piece of what is left of `file`, (pieces,)."""
    return np.array([zlib.crc32(piece) for piece in iter(lambda: file.read(PIECE_BYTES), b"")], "<u4")


def num_pieces(size: int) -> int:
    """Pieces of so many bytes."""
    return -(-size // PIECE_BYTES)


class _OpenFile:
    """A file that is open for reading as long as this object lives."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class Reader:
    """Reads parts of any number of files; the last used stay open, up to half of what the process may open."""

    def __init__(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # -1: none
        self._open = functools.lru_cache(limit // 2 if limit > 0 else None)(_OpenFile)

    def of(self, path: Path, start: int = 0) -> Read:
        """A function that reads `path`, counting its bytes from `start` on; UserError where it cannot."""

        name = str(path)  # opened and hashed faster

        def read(first: int, last: int) -> bytes:
            try:
                file = self._open(name)  # held, so that no other thread's file takes its place and number meanwhile
                data = os.pread(file.descriptor, last - first, start + first)
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror}); mend this and run again") from None
            if len(data) < last - first:
                raise UserError(f"{path}: shorter than it was; put it back from a copy")
            return data

        return read


class CheckedPieces:
    """Bytes of a file whose pieces are compared with their checksums, each once in this process."""

    def __init__(self, path: Path, size: int, data: Read, checksums: Read, advice: str):
        """data: reads what the checksums are of, `size` bytes; checksums: reads those. path, advice: for the UserError
        of a damaged piece."""
        self.path, self.size, self.advice, self._data, self._checksums = path, size, advice, data, checksums
        self._checked = bytearray(-(-num_pieces(size) // 8))  # a bit a piece

    def read(self, first: int, last: int) -> bytes:
        """The bytes [first, last); UserError where they lie in a piece that is not as it was written."""
        pieces = range(first // PIECE_BYTES, num_pieces(last))
        if all(self._checked[piece >> 3] >> (piece & 7) & 1 for piece in pieces):
            return self._data(first, last)
        start = pieces.start * PIECE_BYTES
        data = memoryview(self._data(start, min(pieces.stop * PIECE_BYTES, self.size)))
        checksums = np.frombuffer(self._checksums(4 * pieces.start, 4 * pieces.stop), "<u4").tolist()
        for piece, checksum in zip(pieces, checksums, strict=True):
            at = piece * PIECE_BYTES
            if zlib.crc32(data[at - start : at - start + PIECE_BYTES]) != checksum:
                raise UserError(
                    f"{self.path}: damaged between the bytes {at} and {at + PIECE_BYTES} (another checksum "
                    f"than when it was written); {self.advice}"
                )
            self._checked[piece >> 3] |= 1 << (piece & 7)
        return bytes(data[first - start : last - start])
