"""Raw text in CC-100's form: a sentence or paragraph a line, a blank line between documents.

Text is read in chunks of at most CHUNK_BYTES, cut at blank lines, so that memory stays bounded and
chunks can be worked on in parallel. Where a chunk ends depends on the text from its start on and on
nothing else: reading can begin again at any chunk's end and meets the same chunks.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import itertools
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.text_hashes import HashedFile

CHUNK_BYTES = 1 << 20
_CUTS = (b"\n\n", b"\n\r\n", b"\n", b" ")  # where a chunk may end, best first


class Position(NamedTuple):
    """A place in a list of files: number of the file, byte in its decompressed text, line (from 1)."""

    file: int = 0
    byte: int = 0
    line: int = 1


START = Position()


class Chunk(NamedTuple):
    """Some of a file's decompressed bytes, from `start` to `end`."""

    path: str
    start: Position
    end: Position
    data: bytes


def find_files(patterns: Iterable[str | Path]) -> list[Path]:
    """Files that paths and globs (`**` too) name, in order, each once; UserError where there is none."""
    found: list[Path] = []
    for pattern in map(str, patterns):
        is_glob = glob.has_magic(pattern) and not Path(pattern).exists()
        names = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]
        if not names:
            raise UserError(f"{pattern}: no file matches; check data.text in the recipe")
        for path in map(Path, names):
            if not path.is_file():
                raise UserError(f"{path}: no such text file; check data.text in the recipe")
            if path.stat().st_size == 0:
                raise UserError(f"{path}: the file is empty; fetch it again or leave it out")
            if path not in found:
                found.append(path)
    return found


def read_chunks(files: Sequence[Path], start: Position = START) -> Iterator[Chunk]:
    """Chunks of the files from `start` on. A document that a chunk cannot hold is cut at a line end,
    a line that it cannot hold at a space.

    Raises UserError for a damaged or unreadable file and for one without text.
    """
    for number in range(start.file, len(files)):
        yield from _chunks_of_file(files[number], start if number == start.file else Position(number))


def documents(chunk: Chunk) -> Iterator[list[str]]:
    """Documents of a chunk, each a list of its non-empty lines without surrounding white space.

    Raises UserError where a line is not UTF-8 or holds NUL, which SentencePiece takes for <s>.
    """
    data = chunk.data.removeprefix(codecs.BOM_UTF8) if chunk.start.byte == 0 else chunk.data
    if (nul := data.find(b"\0")) >= 0:
        line_number = chunk.start.line + data.count(b"\n", 0, nul)
        raise UserError(f"{chunk.path}:{line_number}: a NUL character; remove it, for example with tr -d '\\0'")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line_number = chunk.start.line + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{chunk.path}:{line_number}: not UTF-8 text ({error.reason}); convert the file, for example with iconv"
        ) from None
    lines = map(str.strip, text.split("\n"))  # not splitlines: form feeds, U+2028 … are no line ends here
    for has_text, run in itertools.groupby(lines, bool):
        if has_text:
            yield list(run)


def read_documents(patterns: Iterable[str | Path]) -> Iterator[list[str]]:
    """All documents of the files that `patterns` name."""
    for chunk in read_chunks(find_files(patterns)):
        yield from documents(chunk)


def _chunks_of_file(path: Path, position: Position) -> Iterator[Chunk]:
    blank = position.byte == 0  # nothing but white space so far
    buffer = b""
    try:
        with io.BufferedReader(HashedFile(path), 1 << 17) as raw, _decompressed(raw, path) as file:
            file.seek(position.byte)
            while True:
                buffer += file.read(CHUNK_BYTES - len(buffer))
                if not buffer:
                    break
                size = _cut(buffer) if len(buffer) == CHUNK_BYTES else len(buffer)
                data, buffer = buffer[:size], buffer[size:]
                end = Position(position.file, position.byte + size, position.line + data.count(b"\n"))
                blank = blank and data.isspace()
                yield Chunk(str(path), position, end, data)
                position = end
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{path}: cannot be read near line {position.line} ({error}); "
            "the file is damaged, cut short or not readable; fetch it again"
        ) from error
    if blank:
        raise UserError(f"{path}: holds no text; fetch it again or leave it out")


def _cut(buffer: bytes) -> int:
    """Length of the longest good chunk that starts `buffer`."""
    for mark in _CUTS:
        at = buffer.rfind(mark)
        if at >= 0:
            return at + len(mark)
    size = len(buffer) - 1
    while size > 1 and buffer[size] & 0xC0 == 0x80:  # not inside a UTF-8 character
        size -= 1
    return size


def _decompressed(file: IO[bytes], path: Path) -> IO[bytes] | gzip.GzipFile | lzma.LZMAFile:
    """The bytes of an open file; the suffix of its path says how it is compressed."""
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=file)
    if path.suffix == ".xz":
        return lzma.LZMAFile(file)
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdFile(file, path), 1 << 17)
    return file


class _ZstdFile(io.RawIOBase):
    """Decompressed bytes of a .zst file of any number of frames.

    zstandard's own file object takes a file that was cut short for one that ended: this one raises
    EOFError.
    """

    def __init__(self, file: IO[bytes], path: Path):
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path}: reading .zst needs the package zstandard; run pip install zstandard") from None
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None  # the open frame; None between frames
        self._file = file
        self._ready = memoryview(b"")
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            data = self._file.read(1 << 16)
            if not data:
                if self._frame is not None:
                    raise EOFError("a zstd frame is not complete")
                return 0
            self._ready = memoryview(self._decompress(data))
        size = min(len(target), len(self._ready))
        target[:size], self._ready = self._ready[:size], self._ready[size:]
        self._position += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip forward to the byte `offset`, as gzip and lzma do: by reading up to it."""
        assert whence == io.SEEK_SET and offset >= self._position
        while self._position < offset and self.readinto(bytearray(min(offset - self._position, 1 << 17))):
            pass
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def _decompress(self, data: bytes) -> bytes:
        """Decompress `data` to the end, through the ends of frames."""
        parts = []
        try:
            while data:
                if self._frame is None:
                    self._frame = self._decompressor.decompressobj()
                parts.append(self._frame.decompress(data))
                data = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
        except self._error as error:
            raise OSError(str(error)) from None
        return b"".join(parts)
