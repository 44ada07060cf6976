"""A draw from a text: whole documents from all over it, and hardly more is read."""

import gzip
import json

import pytest

from ds_minimodel.common.files import as_json
from ds_minimodel.text.corpus import (
    BLOCK_BYTES,
    Corpus,
    CorpusOptions,
    draw_parts,
    make_corpus,
    read_drawn,
)
from ds_minimodel.text.reader import documents, identity_of_text, read_documents

DRAWN = 1_000_000  # bytes


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A file of 4 MB, documents of two lines that say their number."""
    path = tmp_path_factory.mktemp("draw") / "xx.txt"
    path.write_text(
        "".join(f"document {index} begins here\nand {index} ends\n\n" for index in range(100_000))
    )
    return path


def identity(text, max_bytes=DRAWN):
    return as_json(identity_of_text([text], draw_parts([text], max_bytes)), {})


def test_whole_documents_are_drawn_from_all_over_a_text(text):
    found = [
        document for chunk in read_drawn([text], DRAWN, "text") for document in documents(chunk)
    ]
    numbers = [int(document[0].split()[1]) for document in found]
    assert all(
        lines == [f"document {n} begins here", f"and {n} ends"]
        for n, lines in zip(numbers, found, strict=True)
    )
    assert numbers == sorted(set(numbers))
    assert numbers[-1] - numbers[0] > 60_000
    assert sum(len("\n".join(lines)) + 2 for lines in found) == pytest.approx(DRAWN, rel=0.2)
    ((*parts,),) = draw_parts([text], DRAWN)
    assert sum(end - start for start, end in parts) <= DRAWN + BLOCK_BYTES
    (more_parts,) = draw_parts([text], 2 * DRAWN)
    more = {position for first, end in more_parts for position in range(first, end)}
    assert all(first in more and end - 1 in more for first, end in parts), (
        "a larger draw holds a smaller one"
    )
    assert list(read_drawn([text], None, "text")) == list(read_drawn([text], 10**9, "text")), (
        "and all may be asked for"
    )


def test_what_is_not_drawn_is_not_read(text, tmp_path):
    """Neither for what tells the text from others."""
    holes = tmp_path / "holes.txt"
    with holes.open("wb") as file:
        for start, end in draw_parts([text], DRAWN)[0]:
            file.seek(start)
            file.write(text.read_bytes()[start:end])
        file.truncate(text.stat().st_size)
    ((of_text,), _) = identity(text)
    ((of_holes,), hashed) = identity(holes)
    ((of_all,), all_hashed) = identity(holes, None)
    assert of_text["sha256"] == of_holes["sha256"] != of_all["sha256"]
    assert hashed.keys().isdisjoint(all_hashed)
    options = CorpusOptions(held_out=0.1, draw=DRAWN)
    make_corpus([text], tmp_path / "text", options)
    make_corpus([holes], tmp_path / "holes", options)
    one = Corpus(tmp_path / "text")
    other = Corpus(tmp_path / "holes")
    assert one.words() == other.words()
    assert list(read_documents(one.training)) == list(read_documents(other.training))
    assert one.facts.documents[1] > 0
    assert one.share_counted == 1


def test_a_long_document_and_one_line_are_cut_and_rows_begin_at_the_beginning(tmp_path):
    long = tmp_path / "long.txt"
    rows = tmp_path / "rows.jsonl.gz"
    long.write_text("words in ä single line " * 100_000)
    _, *others = [chunk.data.decode() for chunk in read_drawn([long], 400_000, "text")]
    assert others
    assert all(
        part.endswith(" ") and part.split()[0] in "words in ä single line" for part in others
    )
    # Books have lines that are longer than a block, so that few blocks have an end of one.
    for line_end in ("\n", "\n\n"):
        long.write_text(f"{'船看见大港' * 15_000}{line_end}" * 10)
        drawn = "".join(chunk.data.decode() for chunk in read_drawn([long], 1_000_000, "text"))
        assert len(drawn.encode()) > 800_000
        assert {*drawn} <= {*"船看见大港\n"}
    with gzip.open(rows, "wt") as file:
        for index in range(200_000):
            file.write(json.dumps({"text": f"row {index}"}) + "\n")
    found = [
        document for chunk in read_drawn([rows], 100_000, "text") for document in documents(chunk)
    ]
    assert found[:2] == [["row 0"], ["row 1"]]
    assert 0 < len(found) < 150_000
    before = identity(rows, 1000)
    rows.write_bytes(rows.read_bytes()[:-1] + b"!")
    assert identity(rows, 1000) != before, "how much of a file its text takes is not known"
    many = [tmp_path / f"{index}.{form}" for form in ("txt", "txt.gz") for index in range(30)]
    for path in many:
        content = f"boat {path.name}\n\n".encode() * 2000
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert sum(len(chunk.data) for chunk in read_drawn(many, 200_000, "text")) < 200_000 + 2 * len(
        content
    )
