"""Raw text is read in CC-100's form, or from the rows of tables.

CC-100's form is a sentence or paragraph a line, and a blank line between documents. Text is read in
chunks of at most CHUNK_BYTES, cut at blank lines, so that memory stays bounded and chunks can be
worked on in parallel.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.extras import import_extra
from ds_minimodel.common.files import Content
from ds_minimodel.text import rows

CHUNK_BYTES = 1 << 20
# Bytes of a plain file that are read at a time.
READ_BYTES = 1 << 17
# Compressed bytes that are decompressed at a time: they can become 30,000 times as many.
COMPRESSED_BYTES = 1 << 12
# Where a chunk may end, best first.
CUTS = (b"\n\n", b"\n\r\n", b"\n", b" ")
# The column in which rows have their text, where nothing else is said.
COLUMN = "text"
_ROWS = (*rows.JSON_LINES, *rows.TABLES, rows.PARQUET)

TextSource = Path | rows.HubText
# (first byte, end) of each part of a file; () is the whole file, NOTHING none of it.
Parts = tuple[tuple[int, int], ...]
NOTHING: Parts = ((0, 0),)


class Chunk(NamedTuple):
    """Some of a file's decompressed bytes.

    Attributes:
        path: the file, as messages say it.
        file: its index among those that are read.
        line: the line of the file, from 1 on, in which the bytes begin.
        data: the bytes.
        of_rows: whether they are documents of rows.
    """

    path: str
    file: int
    line: int
    data: bytes
    of_rows: bool = False


def find_text(patterns: Iterable[str | Path]) -> list[TextSource]:
    """Find the files and data sets that paths and globs (`**` too) name, in order, each once.

    A Hub is not asked.

    Raises:
        UserError: There is no file, or one does not hold text.
    """
    listed: list[TextSource] = []
    for pattern in map(str, patterns):
        if pattern.startswith(rows.PREFIX):
            data_set = rows.HubText.parse(pattern)
            if data_set not in listed:
                listed.append(data_set)
            continue
        is_glob = glob.has_magic(pattern) and not Path(pattern).exists()
        names = sorted(glob.glob(pattern, recursive=True)) if is_glob else [pattern]
        if not names:
            raise UserError(f"{pattern}: no file matches; check the path")
        for path in map(Path, names):
            if path.is_dir():
                raise UserError(f"{path}: a folder; name its files, for example '{path}/**/*.txt'")
            if not path.is_file():
                raise UserError(f"{path}: no such text file; check the path")
            if path.stat().st_size == 0:
                raise UserError(f"{path}: the file is empty; fetch it again or leave it out")
            if path not in listed:
                _refuse_other_forms(path)
                listed.append(path)
    return listed


# What a file is that holds no text, and how it begins.
_OTHER_FORMS = {
    "JSON": rb"\s*(\[\s*)?\{\s*\"(\\.|[^\"\\])*\"\s*:",
    "HTML or XML": rb"(?i:\s*<(!doctype\s+html|html|\?xml))",
    "a PDF file": rb"%PDF-",
    "a document of a word processor, or a ZIP archive": rb"PK\x03\x04|\{\\rtf|\xd0\xcf\x11\xe0",
    "compressed, or an archive": (
        rb"\x1f\x8b|\xfd7zXZ\0|\x28\xb5\x2f\xfd|BZh[1-9]1AY&SY|7z\xbc\xaf|Rar!\x1a"
        rb"|.{257}ustar[\0 ]"
    ),
    "a Parquet file": rb"PAR1\x15",
    "weights of a model": rb".{3}\0{5}\{|GGUF.\0",
}
_TAKEN = (
    "plain text is read, and rows in .jsonl, .csv, .tsv and .parquet, also as .gz, .xz and .zst; "
    "unpack or convert it, or let its name say what it is"
)


def _refuse_other_forms(path: Path) -> None:
    """Raise UserError, with what the file is and what to do, where it begins as no text does."""
    form = form_of(path)
    if form in (rows.PARQUET, rows.DOCUMENTS):
        return
    head = b""
    # Reading the file will say where it is damaged.
    with contextlib.suppress(OSError):
        # Of zstd the first pieces may be empty.
        head = next(filter(None, bytes_of(path)), b"").removeprefix(codecs.BOM_UTF8)
    for what, begins in _OTHER_FORMS.items():
        if what == "JSON" and form in rows.JSON_LINES:
            continue
        is_named_json = what == "JSON" and form == ".json"
        if is_named_json or re.match(begins, head, re.DOTALL):
            raise UserError(f"{path}: {what}; {_TAKEN}")


def read_chunks(files: Sequence[TextSource], column: str = COLUMN) -> Iterator[Chunk]:
    """Yield the chunks of files and data sets.

    A document that a chunk cannot hold is cut at a line end, a line that it cannot hold at a space.

    Args:
        files: as find_text gives them.
        column: where rows have their text, each a document.

    Raises:
        UserError: A file is damaged, not readable or without text, or a row has no text.
    """
    for index, file in enumerate(files):
        yield from _chunks_of_file(file, index, column)


def documents(chunk: Chunk, *, whole: bool = True) -> Iterator[list[str]]:
    """Yield the documents of a chunk, each a list of its lines, of rows with their empty ones.

    Args:
        chunk: of a file.
        whole: whether lines keep white space around them; else empty ones are left out, too.

    Raises:
        UserError: A line is not UTF-8 or holds NUL, which SentencePiece takes for <s>, or lines end
            in CR.
    """
    text = _decoded(chunk)
    for lines in _lines_of_rows(text) if chunk.of_rows else _lines_of_text(text):
        stripped = [*filter(None, map(str.strip, lines))]
        if stripped:
            yield lines if whole else stripped


def _decoded(chunk: Chunk) -> str:
    """Return the text of a chunk; raise UserError, with the line, where it is none."""
    data = chunk.data.removeprefix(codecs.BOM_UTF8) if chunk.line == 1 else chunk.data
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{chunk.path}: UTF-16, not UTF-8; convert the file, for example with iconv -f UTF-16 "
            "-t UTF-8"
        )
    # Of rows, NUL stands for an empty line.
    nul = -1 if chunk.of_rows else data.find(b"\0")
    if nul >= 0:
        line_number = chunk.line + data.count(b"\n", 0, nul)
        raise UserError(
            f"{chunk.path}:{line_number}: a NUL character; remove it, for example with tr -d '\\0'"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line_number = chunk.line + data.count(b"\n", 0, error.start)
        raise UserError(
            f"{chunk.path}:{line_number}: not UTF-8 text ({error.reason}); convert the file, for "
            "example with iconv"
        ) from None
    if chunk.line == 1 and "\n" not in text:
        # One line that is longer than a chunk may have some CR inside; many of them end lines.
        num_cr = text.strip().count("\r")
        if len(text) < num_cr * (CHUNK_BYTES // 100):
            raise UserError(
                f"{chunk.path}:1: lines end in CR alone; convert the file: tr '\\r' '\\n'"
            )
    return text


# No splitlines in these: form feeds, U+2028 … are no line ends here.


def _lines_of_rows(text: str) -> Iterator[list[str]]:
    # A chunk may end within a document or its end.
    for document in text.split("\n\n"):
        yield document.strip("\n").replace(rows.BLANK, "").split("\n")


def _lines_of_text(text: str) -> Iterator[list[str]]:
    runs = itertools.groupby(text.split("\n"), lambda line: not line or line.isspace())
    for is_blank, lines in runs:
        if not is_blank:
            yield [line.removesuffix("\r") for line in lines]


def read_documents(patterns: Iterable[str | Path], column: str = COLUMN) -> Iterator[list[str]]:
    """Yield all documents of some files; lines keep white space around them.

    Args:
        patterns: as `find_text` takes them.
        column: where rows have their text.
    """
    for chunk in read_chunks(find_text(patterns), column=column):
        yield from documents(chunk)


def read_rows(patterns: Iterable[str | Path], columns: Sequence[str], example: str) -> rows.Rows:
    """Yield all rows of some files.

    Args:
        patterns: as `find_text` takes them.
        columns: that a row has at least, where its file has them.
        example: a row, as a message shows it.

    Raises:
        UserError: A file is damaged, not readable, or of plain text.
    """
    for path in find_text(patterns):
        if isinstance(path, Path) and form_of(path) not in _ROWS:
            raise UserError(
                f"{path}: rows are expected; name files of {', '.join(_ROWS)} with rows such as "
                f"{example}"
            )
        try:
            yield from _rows(path, columns)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error}); it is damaged, cut short or not readable"
            ) from error


def _chunks_of_file(path: TextSource, index: int, column: str) -> Iterator[Chunk]:
    of_rows = isinstance(path, rows.HubText) or _has_rows(path)
    is_blank = True
    line = 1
    buffer = bytearray()
    try:
        pieces = filter(None, _pieces(path, column))
        while True:
            while len(buffer) < CHUNK_BYTES:
                piece = next(pieces, b"")
                if not piece:
                    break
                buffer += piece
            if not buffer:
                break
            size = _cut(buffer[:CHUNK_BYTES]) if len(buffer) >= CHUNK_BYTES else len(buffer)
            data = bytes(buffer[:size])
            del buffer[:size]
            is_blank = is_blank and data.isspace()
            yield Chunk(path=str(path), file=index, line=line, data=data, of_rows=of_rows)
            line += data.count(b"\n")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read near line {line} ({error}); "
            "the file is damaged, cut short or not readable; fetch it again"
        ) from error
    if is_blank:
        raise UserError(f"{path}: holds no text; fetch it again or leave it out")


def _pieces(path: TextSource, column: str) -> Iterator[bytes]:
    """Yield the text of a file or data set, piece by piece; a row is a document."""
    if isinstance(path, Path) and form_of(path) not in _ROWS:
        yield from bytes_of(path)
        return
    for where, row in _rows(path, (column,)):
        yield rows.document_of(row, column, where)


def pinned(text: Iterable[TextSource]) -> list[TextSource]:
    """Return the same, data sets at the commits that their revisions name now."""
    return [source.pinned() if isinstance(source, rows.HubText) else source for source in text]


def names_of(text: Iterable[TextSource]) -> list[str]:
    """Return what a manifest says of text: the names of files, data sets with their commits."""
    return [source.name if isinstance(source, Path) else str(source) for source in text]


def identity_of_text(
    text: Sequence[TextSource], parts: Iterable[Parts] = ()
) -> list[dict[str, Any]]:
    """Return what tells each text from others, and from what it was before it was edited.

    Of a file these are name, size and Content; of a data set its name, with the commit where it is
    `pinned`.

    Args:
        text: files and data sets.
        parts: of each, that are read; by default all.
    """
    identities: list[dict[str, Any]] = []
    for source, parts_read in itertools.zip_longest(text, parts, fillvalue=()):
        if not isinstance(source, Path):
            identities.append({"name": str(source)})
            continue
        # It is not known how far a file of rows is read, so the whole counts.
        if _has_rows(source) and parts_read != NOTHING:
            parts_read = ()
        content = Content.of(source, parts_read)
        size = source.stat().st_size
        identities.append({"name": source.name, "bytes": size, "sha256": content})
    return identities


def _has_rows(path: Path) -> bool:
    return form_of(path) in (rows.DOCUMENTS, *_ROWS)


def is_plain(source: TextSource) -> bool:
    """Return whether it is a file whose bytes are text, which can be entered anywhere."""
    if not isinstance(source, Path) or _has_rows(source):
        return False
    return source.suffix.lower() not in _STREAMS


def bytes_of_text(text: Iterable[TextSource]) -> int:
    """Estimate how many bytes of text there are.

    A compressed file holds three times its size; a data set counts as 0.
    """
    return sum(
        source.stat().st_size * (3 if source.suffix.lower() in _STREAMS else 1)
        for source in text
        if isinstance(source, Path)
    )


def _cut(buffer: bytearray) -> int:
    """Return the length of the longest good chunk that starts `buffer`."""
    for mark in CUTS:
        index = buffer.rfind(mark)
        if index >= 0:
            return index + len(mark)
    size = len(buffer) - 1
    # Bytes 10xxxxxx are inside a UTF-8 character.
    while size > 1 and buffer[size] & 0xC0 == 0x80:
        size -= 1
    return size


def _rows(path: TextSource, columns: Sequence[str]) -> rows.Rows:
    """Return the rows of a data set or of a file of the forms _ROWS, as `read_rows` does."""
    if isinstance(path, rows.HubText):
        return rows.rows_of_hub(path)
    form = form_of(path)
    if form == rows.PARQUET:
        return rows.rows_of_parquet(path, columns)
    if form in rows.JSON_LINES:
        return rows.rows_of_json_lines(bytes_of(path), path)
    return rows.rows_of_table(bytes_of(path), path, form)


def form_of(path: Path) -> str:
    """Return the suffix of a file's name before that of its compression, in lower case."""
    path = Path(path.name.lower())
    return path.with_suffix("").suffix if path.suffix in _STREAMS else path.suffix


def bytes_of(path: Path) -> Iterator[bytes]:
    """Yield what a file holds, decompressed; OSError where it is damaged."""
    new_stream = _STREAMS.get(path.suffix.lower())
    with path.open("rb", READ_BYTES) as file:
        if new_stream is not None:
            yield from _decompressed(file, new_stream)
            return
        yield from iter(lambda: file.read(READ_BYTES), b"")


def _decompressed(file: IO[bytes], new_stream: Callable[[], Any]) -> Iterator[bytes]:
    """Yield what a file of streams, one after another, holds.

    The file objects of lzma and zstandard would take damage after the end of a stream for the end
    of the text.

    Args:
        file: compressed.
        new_stream: makes a decompressor.

    Raises:
        OSError: a stream is damaged or cut short. NUL bytes behind a stream are skipped.
    """
    data = file.read(COMPRESSED_BYTES)
    while data:
        stream = new_stream()
        while not stream.eof:
            if not data:
                raise OSError("the end of the compressed text is missing")
            try:
                piece = stream.decompress(data)
            # Each library has errors of its own.
            except Exception as error:
                raise OSError(str(error)) from None
            yield piece
            data = stream.unused_data or file.read(COMPRESSED_BYTES)
        while data[:1] == b"\0":
            data = data.lstrip(b"\0") or file.read(COMPRESSED_BYTES)


def _zstd_stream() -> Any:
    zstandard = import_extra("zstandard", "zstd")
    # The window that zstd --long=31 writes.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


# A decompressor by suffix.
_STREAMS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(31),
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    ".zst": _zstd_stream,
}
