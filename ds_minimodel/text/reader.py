"""Raw text in CC-100's form: a sentence or paragraph a line, a blank line between documents; or
rows of a table.

Text is read in chunks of at most CHUNK_BYTES, cut at blank lines, so that memory stays bounded and
chunks can be worked on in parallel.
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
_ROWS = (*rows.JSON_LINES, *rows.TABLES, rows.PARQUET)
CUTS = (b"\n\n", b"\n\r\n", b"\n", b" ")  # where a chunk may end, best first


TextSource = Path | rows.HubText
Parts = tuple[tuple[int, int], ...]  # of a file: first byte, end
NOTHING: Parts = ((0, 0),)
COLUMN = "text"  # of rows


class Chunk(NamedTuple):
    """Some of a file's decompressed bytes. file: its number among those that are read. line: of the
    file (from 1), in which they begin. of_rows: whether they are documents of rows.
    """

    path: str
    file: int
    line: int
    data: bytes
    of_rows: bool = False


def find_text(patterns: Iterable[str | Path]) -> list[TextSource]:
    """Files that paths and globs (`**` too) name, in order, each once, and data sets of the Hub
    (rows.HubText).

    UserError where there is no file, and for one that does not hold text; a Hub is not asked.
    """
    listed: list[TextSource] = []
    for pattern in map(str, patterns):
        if pattern.startswith(rows.PREFIX):
            listed += [of_hub] if (of_hub := rows.HubText.of(pattern)) not in listed else []
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


_OTHER_FORMS = {  # what a file is, and how it begins
    "JSON": rb"\s*(\[\s*)?\{\s*\"(\\.|[^\"\\])*\"\s*:",
    "HTML or XML": rb"(?i:\s*<(!doctype\s+html|html|\?xml))",
    "a PDF file": rb"%PDF-",
    "a document of a word processor, or a ZIP archive": rb"PK\x03\x04|\{\\rtf|\xd0\xcf\x11\xe0",
    "compressed, or an archive": rb"\x1f\x8b|\xfd7zXZ\0|\x28\xb5\x2f\xfd|BZh[1-9]1AY&SY|7z\xbc\xaf|Rar!\x1a"
    rb"|.{257}ustar[\0 ]",
    "a Parquet file": rb"PAR1\x15",
    "weights of a model": rb".{3}\0{5}\{|GGUF.\0",
}
_TAKEN = (
    "plain text is read, and rows in .jsonl, .csv, .tsv and .parquet, also as .gz, .xz and .zst; "
    "unpack or convert it, "
    "or let its name say what it is"
)


def _refuse_other_forms(path: Path) -> None:
    """UserError, with what the file is and what to do, where it begins as no text does."""
    form, head = form_of(path), b""
    if form in (rows.PARQUET, rows.DOCUMENTS):
        return
    with (
        contextlib.ExitStack() as stack,
        contextlib.suppress(OSError),
    ):  # reading says where it is damaged
        head = next(
            filter(None, bytes_of(path, stack)), b""
        )  # a block of zstd may need more than one read
        head = head.removeprefix(codecs.BOM_UTF8)
    taken = {"JSON"} if form in rows.JSON_LINES else set()
    for what, begins in _OTHER_FORMS.items():
        if what not in taken and (
            re.match(begins, head, re.DOTALL) or (form == ".json" and what == "JSON")
        ):
            raise UserError(f"{path}: {what}; {_TAKEN}")


def read_chunks(files: Sequence[TextSource], column: str = COLUMN) -> Iterator[Chunk]:
    """Chunks of the files. column: where rows have their text, each a document.

    A document that a chunk cannot hold is cut at a line end, a line that it cannot hold at a space.
    Raises UserError for a damaged or unreadable file, for one without text and for a row without
    one.
    """
    for number, file in enumerate(files):
        yield from _chunks_of_file(file, number, column)


def documents(chunk: Chunk, whole: bool = True) -> Iterator[list[str]]:
    """Documents of a chunk, each a list of its lines, those of rows with their empty ones.

    whole: whether lines keep white space around them, else empty ones are left out, too. Raises
    UserError where a line is not UTF-8 or holds NUL, which SentencePiece takes for <s>, and for
    ends of CR.
    """
    data = chunk.data.removeprefix(codecs.BOM_UTF8) if chunk.line == 1 else chunk.data
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(
            f"{chunk.path}: UTF-16, not UTF-8; convert the file, for example with iconv -f UTF-16 "
            "-t UTF-8"
        )
    if not chunk.of_rows and (nul := data.find(b"\0")) >= 0:
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
    # A line that is longer than a chunk may have a CR inside; lines that end in CR are shorter on
    # average.
    if (
        chunk.line == 1
        and "\n" not in text
        and len(text) < CHUNK_BYTES // 100 * text.strip().count("\r")
    ):
        raise UserError(
            f"{chunk.path}:{chunk.line}: lines end in CR alone; convert the file: tr '\\r' '\\n'"
        )
    groups: Iterable[list[str]]  # not of splitlines: form feeds, U+2028 … are no line ends here
    if chunk.of_rows:  # a chunk may end within a document or its end
        groups = (
            part.strip("\n").replace(rows.BLANK, "").split("\n") for part in text.split("\n\n")
        )
    else:
        runs = itertools.groupby(text.split("\n"), lambda line: not line or line.isspace())
        groups = (
            [line.removesuffix("\r") for line in run] for is_blank, run in runs if not is_blank
        )
    for lines in groups:
        stripped = [*filter(None, map(str.strip, lines))]
        if stripped:
            yield lines if whole else stripped


def read_documents(patterns: Iterable[str | Path], column: str = COLUMN) -> Iterator[list[str]]:
    """All documents of the files that `patterns` name; column: of rows. Lines keep white space
    around them.
    """
    for chunk in read_chunks(find_text(patterns), column=column):
        yield from documents(chunk, True)


def read_rows(patterns: Iterable[str | Path], columns: Sequence[str]) -> rows.Rows:
    """All rows of the files that `patterns` name, with these columns at least, as far as they have
    them.

    UserError for a damaged or unreadable file, and for one of plain text.
    """
    for path in find_text(patterns):
        if isinstance(path, Path) and form_of(path) not in _ROWS:
            raise UserError(f"{path}: rows are expected; name files of {', '.join(_ROWS)}")
        try:
            with contextlib.ExitStack() as stack:
                yield from _rows(path, columns, stack)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error}); it is damaged, cut short or not readable"
            ) from error


def _chunks_of_file(path: TextSource, number: int, column: str) -> Iterator[Chunk]:
    blank, line = True, 1  # nothing but white space so far
    buffer, of_rows = (
        bytearray(),
        isinstance(path, rows.HubText) or form_of(path) in (rows.DOCUMENTS, *_ROWS),
    )
    try:
        with contextlib.ExitStack() as stack:
            if isinstance(path, rows.HubText) or form_of(path) in _ROWS:
                table = _rows(path, (column,), stack)
                pieces = filter(
                    None, (rows.document_of(row, column, where) for where, row in table)
                )
            else:
                pieces = filter(None, bytes_of(path, stack))
            while True:
                while len(buffer) < CHUNK_BYTES and (piece := next(pieces, b"")):
                    buffer += piece
                if not buffer:
                    break
                size = _cut(buffer[:CHUNK_BYTES]) if len(buffer) >= CHUNK_BYTES else len(buffer)
                data = bytes(buffer[:size])
                del buffer[:size]
                blank = blank and data.isspace()
                yield Chunk(str(path), number, line, data, of_rows)
                line += data.count(b"\n")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read near line {line} ({error}); "
            "the file is damaged, cut short or not readable; fetch it again"
        ) from error
    if blank:
        raise UserError(f"{path}: holds no text; fetch it again or leave it out")


def pinned(text: Iterable[TextSource]) -> list[TextSource]:
    """The same, data sets at the commits that their revisions name now."""
    return [source.pinned() if isinstance(source, rows.HubText) else source for source in text]


def names_of(text: Iterable[TextSource]) -> list[str]:
    """What a manifest says of text: the names of files, data sets with their commits."""
    return [source.name if isinstance(source, Path) else str(source) for source in text]


def identity_of_text(
    text: Sequence[TextSource], parts: Iterable[Parts] = ()
) -> list[dict[str, Any]]:
    """What tells each text from others, and from what it was before it was edited: of a file name,
    size and Content; of a data set its name, with the commit where it is `pinned`. parts: of each,
    that are read; by default all. Of a file of rows, of which it is not known how far it is read,
    the whole counts.
    """
    return [
        {"name": source.name, "bytes": source.stat().st_size, "sha256": _content(source, own or ())}
        if isinstance(source, Path)
        else {"name": str(source)}
        for source, own in itertools.zip_longest(text, parts)
    ]


def _content(path: Path, parts: Parts) -> Content:
    return Content.of(path, () if _has_rows(path) and parts != NOTHING else parts)


def _has_rows(path: Path) -> bool:
    return form_of(path) in (rows.DOCUMENTS, *_ROWS)


def is_plain(source: TextSource) -> bool:
    """Whether it is a file whose bytes are text, which can be entered anywhere."""
    return (
        isinstance(source, Path) and source.suffix.lower() not in _STREAMS and not _has_rows(source)
    )


def bytes_of_text(text: Iterable[TextSource]) -> int:
    """About how many bytes of text the files hold, a compressed one three times its size; 0 for a
    data set.
    """
    return sum(
        source.stat().st_size * (3 if source.suffix.lower() in _STREAMS else 1)
        for source in text
        if isinstance(source, Path)
    )


def _cut(buffer: bytearray) -> int:
    """Length of the longest good chunk that starts `buffer`."""
    for mark in CUTS:
        at = buffer.rfind(mark)
        if at >= 0:
            return at + len(mark)
    size = len(buffer) - 1
    while size > 1 and buffer[size] & 0xC0 == 0x80:  # not inside a UTF-8 character
        size -= 1
    return size


def _rows(path: TextSource, columns: Sequence[str], stack: contextlib.ExitStack) -> rows.Rows:
    """The rows of a data set, or a file of the forms _ROWS, with these columns at least, as far as
    it has them.
    """
    if isinstance(path, rows.HubText):
        return rows.rows_of_hub(path)
    if (form := form_of(path)) == rows.PARQUET:
        return rows.rows_of_parquet(path, columns)
    if form in rows.JSON_LINES:
        return rows.rows_of_json_lines(bytes_of(path, stack), path)
    return rows.rows_of_table(bytes_of(path, stack), path, form)


def form_of(path: Path) -> str:
    """The suffix of a file's name before that of its compression, in lower case."""
    path = Path(path.name.lower())
    return path.with_suffix("").suffix if path.suffix in _STREAMS else path.suffix


def bytes_of(path: Path, stack: contextlib.ExitStack) -> Iterator[bytes]:
    """What a file holds, decompressed. stack: closes it."""
    file = stack.enter_context(path.open("rb", 1 << 17))
    if stream := _STREAMS.get(path.suffix.lower()):
        return _decompressed(file, stream)
    return iter(lambda: file.read(1 << 17), b"")


def _decompressed(file: IO[bytes], new_stream: Callable[[], Any]) -> Iterator[bytes]:
    """What a file of streams, one after another, holds; OSError for all that is no whole stream,
    but for NUL bytes.

    (The file objects of lzma and zstandard take damage after the end of a stream for the end of the
    text.) new_stream: a decompressor.
    """
    data = file.read(_PIECE)
    while data:
        stream = new_stream()
        while not stream.eof:
            if not data:
                raise OSError("the end of the compressed text is missing")
            try:
                yield stream.decompress(data)
            except Exception as error:  # each library has its own
                raise OSError(str(error)) from None
            data = stream.unused_data or file.read(_PIECE)
        while data[:1] == b"\0":
            data = data.lstrip(b"\0") or file.read(_PIECE)


def _zstd_stream() -> Any:
    zstandard = import_extra("zstandard", "zstd")
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()  # as zstd --long=31


_PIECE = (
    1 << 12
)  # compressed bytes that are decompressed at a time: they can become 30,000 times as many
_STREAMS: dict[str, Callable[[], Any]] = {  # a decompressor by suffix
    ".gz": lambda: zlib.decompressobj(31),
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    ".zst": _zstd_stream,
}
