"""Whole hashes of raw text, taken as it is streamed or by reading it once more; size, time and inode tell when."""

import hashlib
import io
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ds_minimodel.common.files import Count, Sha256, Stored, sha256_of_file


class TextFacts(Stored):
    """What tells whether a file of text need be read again, and its hash once it was read."""

    bytes: Count
    mtime_ns: Annotated[int, Field(ge=-(2**64), le=2**64)]
    inode: Annotated[int, Field(ge=0, le=2**64)]
    sha256: Sha256 | None = None

    @property
    def unread(self) -> "TextFacts":
        return self.model_copy(update={"sha256": None})


_known: dict[tuple[int, int, int], str] = {}  # of this process: (bytes, mtime_ns, inode) -> hash


def facts_of_text(path: str | Path) -> TextFacts:
    """Size, time and inode of a file."""
    facts = os.stat(path)
    return TextFacts(bytes=facts.st_size, mtime_ns=facts.st_mtime_ns, inode=facts.st_ino)


def sha256_of_text(path: str | Path) -> str:
    """Hash of a whole file; it is read, unless it was in this process and has not changed since."""
    key = _key(os.stat(path))
    if key not in _known:
        _known[key] = sha256_of_file(path)
    return _known[key]


class HashedFile(io.FileIO):
    """A file that is hashed as it is read from its start to its end."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        self._digest, self._hashed = hashlib.sha256(), 0
        self._opened = os.fstat(self.fileno())

    def readinto(self, buffer: Any) -> int | None:
        at, size = self.tell(), super().readinto(buffer)
        if size and at == self._hashed:
            self._digest.update(memoryview(buffer)[:size])
            self._hashed += size
        return size

    def close(self) -> None:
        if not self.closed and self._hashed == self._opened.st_size:
            _known[_key(self._opened)] = self._digest.hexdigest()
        super().close()


def _key(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino
