"""Checksums of the pieces of large files, compared where a piece is read for the first time.

A file of hundreds of gigabytes cannot be hashed at every start. CRC-32 finds what disks and copies do to a piece; that
the checksums are the right ones is up to who keeps them (a manifest with their SHA-256).
"""

import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ds_minimodel.common.errors import UserError

PIECE_BYTES = 1 << 13  # so small that the first steps, whose samples lie in as many pieces, are not slower either
Checksums = NDArray[np.uint32]


def checksums_of(file: IO[bytes]) -> Checksums:
    """Checksum of each piece of what is left of `file`, (pieces,)."""
    return np.array([zlib.crc32(piece) for piece in iter(lambda: file.read(PIECE_BYTES), b"")], "<u4")


def num_pieces(size: int) -> int:
    """Pieces of so many bytes."""
    return -(-size // PIECE_BYTES)


class CheckedPieces:
    """Mapped bytes whose pieces are compared with their checksums, each once in this process."""

    def __init__(self, path: Path, data: NDArray[np.uint8], checksums: Checksums | None, advice: str):
        """data: all bytes that the checksums are of; without checksums nothing is compared. path, advice: for the
        UserError of a damaged piece."""
        self.path, self.advice, self._data, self._checksums = path, advice, data, checksums
        self._to_check = bytearray(b"\1" * num_pieces(len(data)))

    def check(self, first: int, last: int) -> None:
        """UserError where the bytes [first, last) lie in a piece that is not as it was written."""
        if self._checksums is None:
            return
        for piece in range(first // PIECE_BYTES, num_pieces(last)):
            if self._to_check[piece]:
                start = piece * PIECE_BYTES
                if zlib.crc32(self._data[start : start + PIECE_BYTES].data) != self._checksums[piece]:
                    raise UserError(
                        f"{self.path}: damaged between the bytes {start} and {start + PIECE_BYTES} (another checksum "
                        f"than when it was written); {self.advice}"
                    )
                self._to_check[piece] = 0
