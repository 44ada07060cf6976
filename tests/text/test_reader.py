"""Reading raw text: every compression, chunk borders, and each way in which a file can be wrong."""

import gzip
import lzma
import random

import pytest
import zstandard

from ds_minimodel.text import reader
from ds_minimodel.text.reader import find_text, read_chunks, read_documents
from tests.helpers.refusals import refuses

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
WORDS = (
    "the model reads text; ein Wörterbuch für alle, ένα λεξικό για όλους 一部词典 พจนานุกรม".split()
)


def make_documents(count, seed=0):
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(draw.randint(1, 8))]
        for _ in range(count)
    ]


def as_text(docs, line_end="\n"):
    return (line_end * 2).join(line_end.join(lines) for lines in docs) + line_end


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(reader, "CHUNK_BYTES", 2000)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_documents_are_read_back_whole_in_many_chunks(tmp_path, small_chunks, suffix, line_end):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    expected = [make_documents(60, seed) for seed in range(2)]
    for path, documents in zip(paths, expected, strict=True):
        path.write_bytes(COMPRESS[suffix](as_text(documents, line_end).encode()))
    assert len(list(read_chunks(paths))) > 10
    assert list(read_documents(paths)) == [*expected[0], *expected[1]]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_files_of_several_streams_are_read_to_the_end(tmp_path, suffix):
    docs = make_documents(20)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](as_text([doc]).encode() + b"\n") for doc in docs))
    assert list(read_documents([path])) == docs


def test_text_without_blank_lines_or_line_ends_is_cut(tmp_path, small_chunks):
    lines = [line for doc in make_documents(100) for line in doc]
    path = tmp_path / "text"

    def lines_read(text):
        path.write_bytes(text.encode())
        return [line for document in read_documents([path]) for line in document]

    assert lines_read("\n".join(lines)) == lines
    assert "".join(lines_read(" ".join(lines))) == " ".join(lines)
    assert "".join(lines_read("辞典" * 3000)) == "辞典" * 3000
    one_cr = "w " * 1000 + "x\ry " + "w " * 20_000 + "\nend\n"
    assert lines_read(one_cr)[-1] == "end"


def test_bad_utf8_names_file_and_line(tmp_path, small_chunks):
    path = tmp_path / "text.txt"
    text = as_text(make_documents(50))
    path.write_bytes(b"\xef\xbb\xbf" + text.encode() + b"fine\nbad \xff byte\n")
    with refuses(rf"text.txt:{text.count(chr(10)) + 2}: not UTF-8"):
        list(read_documents([path]))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_cut_short_and_damaged_files_are_refused(tmp_path, suffix):
    whole = COMPRESS[suffix](as_text(make_documents(5000)).encode())
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    damaged = {"short": whole[: len(whole) // 2], "almost": whole[:-3], "flipped": bytes(flipped)}
    for name, data in damaged.items():
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(data)
        with refuses(f"{name}{suffix}:"):
            list(read_documents([path]))


def test_missing_files_are_refused(tmp_path):
    with refuses("nowhere.txt: no such text file"):
        find_text([tmp_path / "nowhere.txt"])
    with refuses("no file matches"):
        find_text([f"{tmp_path}/*.xz"])
    with refuses(r"a folder; name its files, for example '.*/\*\*/\*.txt'"):
        find_text([tmp_path])


PAGES = {
    "rows.txt": (b'\n{"text": "a"}\n{"text": "b"}\n', "JSON; .*rows in .jsonl"),
    "rows.txt.zst": (zstandard.compress(b'{"text": "a"}\n' * 9999), "JSON"),
    "page.txt": (b"\n<!DOCTYPE HTML><p>", "HTML or XML; plain text is read"),
    "page.csv": (b"<html lang=de>", "HTML or XML"),
    "marked.txt": (b'\xef\xbb\xbf{"text": "abc"}\n', "JSON"),
    "wiki": (b'<?xml version="1.0"?>', "HTML or XML"),
    "paper.PDF": (b"%PDF-1.7\n%\xe2", "a PDF file; .*convert it"),
    "letter.docx": (
        b"PK\x03\x04\x14\0",
        "a document of a word processor, or a ZIP archive; .*; unpack",
    ),
    "rows.jsonl": (lzma.compress(b"{}"), "compressed, or .*let its name say what it is"),
    "a.bz2": (b"BZh91AY&SY", "compressed, or an archive; .*also as .gz, .xz and .zst; unpack"),
    "a.tar.xz": (lzma.compress(b"a" + bytes(256) + b"ustar\0"), "compressed, or an archive"),
    "m.safetensors": (b'\x40\1\0\0\0\0\0\0{"a": 1}', "weights of a model"),
}


@pytest.mark.parametrize("name", PAGES)
def test_what_is_no_text_is_named_before_it_is_read(tmp_path, name):
    content, words = PAGES[name]
    (tmp_path / name).write_bytes(content)
    with refuses(f"{name}: {words}"):
        find_text([tmp_path / name])


@pytest.mark.parametrize(
    "begins", ["{", "[1]", "{curly} a", "GGUF is a format", "PAR1", "<doc id=1>", "PK", "< a"]
)
def test_text_that_begins_almost_so_is_text(tmp_path, begins):
    (tmp_path / "text").write_text(begins)
    assert list(read_documents([tmp_path / "text"])) == [[begins]]


def test_suffixes_are_read_in_any_case_and_zstd_with_a_long_window(tmp_path):
    (tmp_path / "A.TXT.GZ").write_bytes(gzip.compress(b"a"))
    (tmp_path / "b.Jsonl.XZ").write_bytes(lzma.compress(b'{"text": "b"}'))
    window = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "c.Zst").write_bytes(stream.compress(b"c") + stream.flush())
    assert list(read_documents(sorted(tmp_path.iterdir()))) == [["a"], ["b"], ["c"]]


def test_blank_lines_part_documents_and_white_space_is_a_decoders(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeff\n\n  a \r\n\tb\u2028c  \n \t\n\n\n d\n\n".encode())
    assert list(read_documents([path])) == [["  a ", "\tb\u2028c  "], [" d"]]
