"""Text in rows: JSON lines and Parquet files by a column, streamed, with one line for what is no
text.
"""

import csv
import gzip
import json
import lzma
import time
from pathlib import Path

import pytest

from ds_minimodel.text import reader
from ds_minimodel.text.reader import read_documents
from ds_minimodel.text.rows import rows_of_json_lines
from tests.helpers.refusals import refuses


def write_json_lines(path, rows, compress=bytes):
    path.write_bytes(compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_csv(path, rows):
    names = list(rows[0])
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows({name: row[name] or "" for name in names} for row in rows)
    return path


def write_parquet(path, rows):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install pyarrow)")
    from pyarrow import parquet

    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


WRITE = {
    "rows.jsonl": write_json_lines,
    "rows.ndjson": write_json_lines,
    "rows.jsonl.gz": lambda path, rows: write_json_lines(path, rows, gzip.compress),
    "rows.jsonl.xz": lambda path, rows: write_json_lines(path, rows, lzma.compress),
    "rows.parquet": write_parquet,
    "rows.CSV": write_csv,
}


@pytest.mark.parametrize("name", WRITE)
def test_another_column(tmp_path, name):
    rows = [
        {"text": None, "content": "a b"},
        {"text": None, "content": " \n"},
        {"text": None, "content": "c\rd"},
    ]
    path = WRITE[name](tmp_path / name, rows)
    assert list(read_documents([path], "content")) == [["a b"], ["c", "d"]]
    words = (
        "holds no text"
        if name == "rows.CSV"
        else "'text' is null, not text; data.column .--column. names the column"
    )
    with refuses(words):
        list(read_documents([path]))


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("chunk", [1 << 20, 40])
def test_a_row_for_decoders_comes_back_byte_for_byte_but_for_line_ends(
    tmp_path, monkeypatch, name, chunk
):
    """However small the chunks are; for encoders lines come without white space around them, and
    empty ones go.
    """
    monkeypatch.setattr(reader, "CHUNK_BYTES", chunk)
    texts = ["# T\n\nA.\n\n- b\n    - c\n\n\n\n    def f():\r\n\tpass  \n", "\n\n x", " \n\n"]
    texts += ["\u2028y\rz", "\n\nw\n\n"]
    path = WRITE[name](tmp_path / name, [{"text": text} for text in texts])
    whole = ["\n".join(document) for document in read_documents([path])]
    plain = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts if text.strip()]
    assert "".join(whole).replace("\n", "") == "".join(plain).replace("\n", "")
    assert chunk < 100 or whole == plain
    found = [
        line
        for part in reader.read_chunks([path])
        for lines in reader.documents(part, whole=False)
        for line in lines
    ]
    assert found == ["# T", "A.", "- b", "- c", "def f():", "pass", "x", "y", "z", "w"]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("empty.txt", b"", "empty.txt: the file is empty"),
        ("blank.txt", b" \n\n\n", "blank.txt: holds no text"),
        ("nul.txt", b"fine\n\nnot \0 this\n", "nul.txt:3: a NUL character; remove it"),
        ("utf16.txt", "a line\n".encode("utf-16"), "utf16.txt:.*UTF-16, not UTF-8"),
        ("mac.txt", b"a line\ranother\r", "mac.txt:1: lines end in CR alone"),
        ("plain.gz", b"not compressed", "plain.gz: cannot be read"),
        ("rows.tsv", b"id\ttext\n1\ta\tb\n", "rows.tsv:2: 3 fields where the header names 2"),
        ("rows.csv", b"text,id,,,id\na,1,,,2\n", "rows.csv:1: the column 'id' comes twice"),
        ("rows.csv", b'id,text\n1,"a\n', "rows.csv:2: not CSV"),
        ("rows.jsonl", b'{"text": "a"}\n[1]\n', "rows.jsonl:2: not a JSON object"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "rows.jsonl:2: not UTF-8"),
        ("rows.jsonl", b"\n\n", "rows.jsonl: holds no text"),
        ("value.json", b'{"text": "a"}\n', "value.json: JSON; .*rows in .jsonl"),
        (
            "rows.jsonl",
            b'{"text": "a"}\n{"text": "' + b"a" * (1 << 19),
            "rows.jsonl:2: a line of more than 262,144",
        ),
        ("rows.parquet", b"PAR1" + bytes(400), "rows.parquet: cannot be read"),
    ],
)
def test_files_without_text_or_rows_are_refused(tmp_path, monkeypatch, name, content, words):
    monkeypatch.setattr("ds_minimodel.text.rows._MAX_LINE_BYTES", 1 << 18)
    (tmp_path / name).write_bytes(content)
    with refuses(words):
        list(read_documents([tmp_path / name]))


def test_a_long_line_is_joined_once():
    """Of 8 MB in small pieces, joined anew with each of them, half a minute is not enough."""
    line = b'{"text": "' + b"x" * (1 << 23) + b'"}'
    pieces = [line[start : start + 256] for start in range(0, len(line), 256)]
    begun = time.monotonic()
    ((where, row),) = rows_of_json_lines([*pieces, b"\n"], Path("a.jsonl"))
    assert where == "a.jsonl:1"
    assert len(row["text"]) == 1 << 23
    assert time.monotonic() - begun < 5
    short = rows_of_json_lines([b'{"a', b'": 1}\n\n{"b": 2}\n{"c"', b": 3}"], Path("a.jsonl"))
    assert [*short] == [("a.jsonl:1", {"a": 1}), ("a.jsonl:3", {"b": 2}), ("a.jsonl:4", {"c": 3})]


def test_quotes_and_byte_order_marks_in_tables(tmp_path):
    (tmp_path / "rows.tsv").write_text('\ufeffid\ttext\r\n1\tsay "hi\r\n\r\n2\t"b" c\r\n')
    (tmp_path / "rows.csv").write_text('text,id\r\n"two\nlines, ""quoted""",x\r\n')
    assert list(read_documents([tmp_path / "rows.tsv"])) == [['say "hi'], ['"b" c']]
    assert list(read_documents([tmp_path / "rows.csv"])) == [["two", 'lines, "quoted"']]


@pytest.mark.parametrize(
    "row, words",
    [
        (
            '{"messages": []}',
            "rows.jsonl:2: a chat .'messages'. and no text; name the file in data.chats",
        ),
        (
            '{"title": "a"}',
            "rows.jsonl:2: no 'text'; there are: title; data.column .--column. names the column",
        ),
        ('{"text": 7}', "rows.jsonl:2: 'text' is 7, not text"),
        ('{"text": "a\\u0000"}', "rows.jsonl:2: 'text' holds a NUL character"),
        ('{"text": "a"', "rows.jsonl:2: not JSON"),
        ("[" * 100_000, "rows.jsonl:2: not JSON .*recursion"),
    ],
)
def test_a_row_without_text_is_refused_with_its_line(tmp_path, row, words):
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "a"}}\n{row}\n')
    with refuses(words):
        list(read_documents([tmp_path / "rows.jsonl"]))


@pytest.mark.parametrize(
    "rows, words",
    [
        (
            [{"title": "a"}],
            "rows.parquet: no 'text'; there are: title; data.column .--column. names",
        ),
        ([{"text": 7}], "rows.parquet: row 1: 'text' is 7, not text"),
        (
            [{"text": "a"}] * 99 + [{"text": None}],
            "rows.parquet: row 100: 'text' is null, not text",
        ),
        ([{"text": b"a"}], "rows.parquet: row 1: 'text' is .*, not text"),
    ],
)
def test_a_parquet_file_without_text(tmp_path, rows, words):
    with refuses(words):
        list(read_documents([write_parquet(tmp_path / "rows.parquet", rows)]))


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with refuses(r"not installed; pip install 'ds_minimodel\[parquet\]'"):
        list(read_documents([tmp_path / "rows.parquet"]))
