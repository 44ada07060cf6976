"""Rows with named columns are read from JSON lines, tables and data sets of the Hub.

A row's text becomes a document in the form of reader.py: its lines, of which an empty one is
written as BLANK, and an empty line after them.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.extras import import_extra
from ds_minimodel.common.hub import hub_api

# Suffixes of files.
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
# In tab-separated files a quote is a character like others, as in the benchmarks' own.
TABLES: dict[str, dict[str, Any]] = {
    ".csv": {},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}
# Documents in this form, as a corpus has them.
DOCUMENTS = ".documents"
# An empty line; no text has this character.
BLANK = "\0"
# Columns of dialogues.
_CHATS = ("messages", "conversations", "conversation")
_MAX_LINE_BYTES = 1 << 26
# Rows of a Parquet file that are in memory.
_BATCH = 64

# Where a row is, as messages say it, and {column: value}.
Rows = Iterator[tuple[str, Mapping[str, Any]]]


def rows_of_json_lines(pieces: Iterable[bytes], path: Path) -> Rows:
    """Yield the rows of a file of JSON lines, of which `pieces` are the bytes."""
    for line_number, line in enumerate(_text_lines(pieces, path), 1):
        if line.strip():
            where = f"{path}:{line_number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{where}: not JSON ({error}); one object a line is expected"
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{where}: not a JSON object; one object a line is expected")
            yield where, row


def rows_of_table(pieces: Iterable[bytes], path: Path, form: str) -> Rows:
    """Yield the rows of a table, whose values are text.

    Args:
        pieces: the file's bytes.
        path: the file.
        form: ".csv" or ".tsv".
    """
    header: list[str] = []
    for where, fields in fields_of_table(pieces, path, form):
        if not header:
            header = fields
            for name in header:
                if name and header.count(name) > 1:
                    raise UserError(
                        f"{where}: the column '{name:.40}' comes twice; rename or remove one"
                    )
        elif len(fields) != len(header):
            raise UserError(
                f"{where}: {len(fields)} fields where the header names {len(header)}; check "
                "separators and quotes"
            )
        else:
            yield where, dict(zip(header, fields, strict=True))


def fields_of_table(
    pieces: Iterable[bytes], path: Path, form: str
) -> Iterator[tuple[str, list[str]]]:
    """Yield (where it is, its fields) of each line that is not empty of a table, the header too.

    The arguments are those of `rows_of_table`.
    """
    csv.field_size_limit(_MAX_LINE_BYTES)
    lines = (f"{line}\n" for line in _text_lines(pieces, path))
    reader = csv.reader(lines, strict=True, **TABLES[form])
    try:
        for fields in filter(None, reader):
            yield f"{path}:{reader.line_num}", fields
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not CSV ({error})") from None


def rows_of_parquet(path: Path, columns: Sequence[str]) -> Rows:
    """Yield the rows of a Parquet file with those of the `columns` that it has.

    A file that has none of them gives one row of all its columns without values, by which a
    message names these. A few rows are in memory at a time.
    """
    arrow = import_extra("pyarrow", "parquet")
    parquet = import_extra("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            names = file.schema_arrow.names
            present = [name for name in columns if name in names]
            if not present:
                yield str(path), dict.fromkeys(names)
                return
            for column in present:
                if names.count(column) > 1:
                    raise UserError(
                        f"{path}: {column!r:.40} comes twice; data.column (--column) names the "
                        "column of the text"
                    )
            row_number = 0
            for batch in file.iter_batches(_BATCH, columns=present, use_threads=False):
                for values in zip(*batch.columns, strict=True):
                    row_number += 1
                    where = f"{path}: row {row_number}"
                    try:
                        texts = [value.as_py() for value in values]
                    except UnicodeDecodeError as error:
                        raise UserError(f"{where}: not UTF-8 text ({error.reason})") from None
                    yield where, dict(zip(batch.schema.names, texts, strict=True))
    except arrow.ArrowException as error:
        raise OSError(" ".join(str(error).split())) from None


def _text_lines(pieces: Iterable[bytes], path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their ends, LF, and without a byte order mark."""
    for line_number, line in enumerate(_lines(pieces, path), 1):
        try:
            yield line.decode("utf-8-sig" if line_number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{line_number}: not UTF-8 text ({error.reason}); convert the file, for "
                "example with iconv"
            ) from None


def _lines(pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
    # Pieces of a line that has not ended are joined once, however long it is.
    begun: list[bytes] = []
    size = 0
    line_number = 1
    for piece in pieces:
        first, *others = piece.split(b"\n")
        begun.append(first)
        size += len(first)
        for line in others:
            yield b"".join(begun)
            begun = [line]
            size = len(line)
            line_number += 1
        if size > _MAX_LINE_BYTES:
            raise UserError(
                f"{path}:{line_number}: a line of more than {_MAX_LINE_BYTES:,} bytes; one object "
                "a line is expected"
            )
    if size:
        yield b"".join(begun)


def document_of(row: Mapping[str, object], column: str, where: str) -> bytes:
    """Return a row's text as a document; no bytes where it is white space."""
    chat = next((name for name in _CHATS if name in row), None)
    if chat and column not in row:
        raise UserError(
            f"{where}: a chat ({chat!r}) and no text; name the file in data.chats (--chats), of a "
            "language that is added, or write each as one text in a column of its own, which "
            "data.column (--column) names"
        )
    try:
        text = text_field(row, column, where)
    except UserError as error:
        raise UserError(f"{error}; data.column (--column) names the column of the text") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return as_document(lines) if text.strip() else b""


def as_document(lines: Iterable[str]) -> bytes:
    """Return a document of these lines."""
    return ("\n".join(line or BLANK for line in lines) + "\n\n").encode()


def shown(value: object) -> str:
    """Return a JSON value as a message quotes it."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return json.dumps(value, default=repr)[:40]


def text_field(row: Mapping[str, object], name: str, where: str) -> str:
    """Return the text of a column (or JSON key); UserError where it is missing or no text."""
    if name not in row:
        raise UserError(f"{where}: no '{name}'; there are: {', '.join(map(str, row)) or 'none'}")
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: '{name}' is {shown(value)}, not text")
    # SentencePiece takes it for <s>.
    if "\0" in value:
        raise UserError(f"{where}: '{name}' holds a NUL character; remove it")
    try:
        value.encode()
    # JSON can spell half a surrogate pair; no tokenizer takes it.
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: '{name}' holds half a surrogate pair (a wrong \\u escape, or bytes that are "
            "not UTF-8)"
        ) from None
    return value


# --- Data sets on a Hub of Hugging Face's, streamed by the library datasets ---

PREFIX = "hf://"
_FORM = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^:@\s]+))?"
    r"(?::(?P<config>[\w.-]*)(?::(?P<split>[\w.-]+))?)?",
    re.ASCII,
)


class HubText(NamedTuple):
    """A data set on the Hub: hf://datasets/NAME[@REVISION][:CONFIG[:SPLIT]]."""

    name: str
    revision: str | None
    config: str | None
    split: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form above; UserError where a text has another one."""
        match = _FORM.fullmatch(text)
        if not match:
            raise UserError(
                f"{text}: not of the form hf://datasets/NAME[@REVISION][:CONFIG[:SPLIT]]"
            )
        return cls(
            name=match["name"],
            revision=match["revision"],
            config=match["config"] or None,
            split=match["split"] or "train",
        )

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}datasets/{self.name}{revision}:{self.config or ''}:{self.split}"

    def pinned(self) -> Self:
        """Return the same at the commit that its revision names now."""
        with hub_api(str(self)) as api:
            return self._replace(revision=api.dataset_info(self.name, revision=self.revision).sha)


def rows_of_hub(text: HubText) -> Rows:
    """Yield the rows of a data set, as they are streamed."""
    datasets = import_extra("datasets", "datasets")
    with hub_api(str(text)):
        rows: Any = datasets.load_dataset(
            text.name, text.config, split=text.split, revision=text.revision, streaming=True
        )
        for row_number, row in enumerate(rows, 1):
            yield f"{text}: row {row_number}", row
