"""Rows with named columns: JSON objects and their texts, and the text of JSON lines, Parquet files and data sets.

A row's text becomes a document in the form of reader.py: its lines, and a blank line after them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from ds_minimodel.common.errors import UserError
from ds_minimodel.common.hub import hub_api

JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"  # suffixes
_MOST_BYTES = 1 << 26  # of a line of JSON
_BATCH = 64  # rows of a Parquet file that are in memory


def documents_of_json_lines(pieces: Iterable[bytes], column: str, path: Path) -> Iterator[bytes]:
    """The documents of a file of JSON lines, of which `pieces` are the bytes."""
    for number, line in enumerate(_lines(pieces, path), 1):
        where = f"{path}:{number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: not UTF-8 text ({error.reason}); convert the file, for example with iconv"
            ) from None
        if text.strip():
            yield document_of(json_object(text, path, number), column, where)


def documents_of_parquet(column: str, path: Path) -> Iterator[bytes]:
    """The documents of a Parquet file, some rows in memory at a time."""
    try:
        import pyarrow as arrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UserError(
            f"{path}: pyarrow, which reads .parquet files, is not installed; pip install 'ds_minimodel[parquet]'"
        ) from None
    try:
        with ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            names = file.schema_arrow.names
            if names.count(column) != 1:
                has = "comes twice" if column in names else f"is none of its columns: {', '.join(names) or 'none'}"
                raise UserError(f"{path}: {column!r:.40} {has}; data.column names the column of the text")
            number = 0
            for batch in file.iter_batches(_BATCH, columns=[column], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    try:
                        row = {column: value.as_py()}
                    except UnicodeDecodeError as error:
                        raise UserError(f"{path}: row {number}: not UTF-8 text ({error.reason})") from None
                    yield document_of(row, column, f"{path}: row {number}")
    except arrow.ArrowException as error:
        raise OSError(" ".join(str(error).split())) from None


def _lines(pieces: Iterable[bytes], path: Path) -> Iterator[bytes]:
    rest, number = b"", 1
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n") if b"\n" in piece else [rest + piece]
        yield from lines
        number += len(lines)
        if len(rest) > _MOST_BYTES:
            raise UserError(
                f"{path}:{number}: a line of more than {_MOST_BYTES:,} bytes; one object a line is expected"
            )
    yield rest


def document_of(row: Mapping[str, object], column: str, where: str) -> bytes:
    """A row's text as a document; no bytes where it is white space."""
    try:
        text = text_field(row, column, where)
    except UserError as error:
        raise UserError(f"{error}; data.column names the column of the text") from None
    lines = (line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    found = "\n".join(filter(None, lines))
    return f"{found}\n\n".encode() if found else b""


def parse_json(text: str, path: str | Path, form: str, line: int = 1) -> Any:
    """The value of a JSON text that begins at `line` of a file; UserError, with the `form` expected, for another."""
    try:
        return json.loads(text, object_pairs_hook=_each_key_once)
    except _Repeated as error:
        raise UserError(f"{path}:{line}: not JSON (the key {str(error)!r:.40} comes twice); {form}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{line + error.lineno - 1}: not JSON ({error.msg}); {form}") from None
    except ValueError:
        raise UserError(f"{path}:{line}: not JSON (a number has thousands of digits); {form}") from None
    except RecursionError:
        raise UserError(f"{path}:{line}: JSON that is nested too deeply; {form}") from None


class _Repeated(ValueError):
    """A key that an object has twice."""


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise _Repeated(key)
        row[key] = value
    return row


def json_object(text: str, path: str | Path, line: int) -> dict[str, Any]:
    """The JSON object that is line `line` of a file; UserError for another value."""
    row = parse_json(text, path, "one object a line is expected", line)
    if not isinstance(row, dict):
        raise UserError(f"{path}:{line}: not a JSON object; one object a line is expected")
    return row


def shown(value: object) -> str:
    """A JSON value as a message quotes it."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=repr)[:40]


def text_field(row: Mapping[str, object], name: str, where: str) -> str:
    """Text of column (or JSON key) `name`; UserError where it is missing or no text."""
    if name not in row:
        raise UserError(f"{where}: no '{name}'; there are: {', '.join(map(str, row)) or 'none'}")
    value = row[name]
    if not isinstance(value, str):
        raise UserError(f"{where}: '{name}' is {shown(value)}, not text")
    if "\0" in value:  # SentencePiece takes it for <s>
        raise UserError(f"{where}: '{name}' holds a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half a surrogate pair; no tokenizer takes it
        raise UserError(
            f"{where}: '{name}' holds half a surrogate pair (a wrong \\u escape, or bytes that are not UTF-8)"
        ) from None
    return value


# Data sets on a Hub of Hugging Face's, streamed by the library datasets: hf://datasets/NAME.

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
    def of(cls, text: str) -> Self:
        found = _FORM.fullmatch(text)
        if not found:
            raise UserError(f"{text}: not of the form hf://datasets/NAME[@REVISION][:CONFIG[:SPLIT]]")
        return cls(found["name"], found["revision"], found["config"] or None, found["split"] or "train")

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}datasets/{self.name}{revision}:{self.config or ''}:{self.split}"

    def pinned(self) -> Self:
        """The same at the commit that its revision names now."""
        with hub_api(str(self)) as api:
            return self._replace(revision=api.dataset_info(self.name, revision=self.revision).sha)


def documents_of_hub(text: HubText, column: str) -> Iterator[bytes]:
    """The documents of a data set: `column` of its rows, as they are streamed."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"{text}: datasets, which reads hf:// names, is not installed; pip install 'ds_minimodel[datasets]'"
        ) from None
    with hub_api(str(text)):
        rows: Any = datasets.load_dataset(
            text.name, text.config, split=text.split, revision=text.revision, streaming=True
        )
        for number, row in enumerate(rows, 1):
            yield document_of(row, column, f"{text}: row {number}")
