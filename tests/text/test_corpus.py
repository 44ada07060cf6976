"""Corpora: what is in one, whoever makes it, and that the reader gives back the documents of the
text.
"""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from ds_minimodel.pipeline.layout import WorkdirLayout
from ds_minimodel.pipeline.steps.corpus import write_tests
from ds_minimodel.text.corpus import Corpus, CorpusOptions, count_words, is_held_out, make_corpus
from ds_minimodel.text.reader import read_documents
from tests.helpers.refusals import refuses

from ..data.conftest import content

SHARE = 0.2


def test_documents_are_those_of_the_text_apart_where_held_out(
    tmp_path, text_file, corpus, monkeypatch
):
    make_corpus([text_file], tmp_path / "one", CorpusOptions(held_out=SHARE))
    made = Corpus(tmp_path / "one")
    for files, side in ((made.training, False), (made.held_out, True)):
        assert [*read_documents(files)] == [
            lines for lines in corpus if is_held_out(lines, SHARE) == side
        ]
    training = [*read_documents(made.training)]
    assert made.words() == count_words(training)
    assert made.share_counted == 1
    assert sum(made.words().values()) == sum(
        len(line.split()) for lines in training for line in lines
    )
    monkeypatch.setattr("ds_minimodel.text.reader.CHUNK_BYTES", 5000)
    for workers in (1, 2):
        options = CorpusOptions(held_out=SHARE)
        make_corpus([text_file], tmp_path / f"{workers}", options, workers=workers)
        assert [*read_documents(Corpus(tmp_path / f"{workers}").training)] == training
    assert content(tmp_path / "1") == content(tmp_path / "2")


@pytest.mark.parametrize("whole", [True, False])
def test_white_space_is_a_decoders(tmp_path, whole):
    """Rows keep their empty lines, too."""
    rows = [["# T", "", "  A. ", "\tb"], ["", " x"]]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"mine": "\r\n".join(lines)}) + "\n" for lines in rows)
    )
    (tmp_path / "text.txt").write_text("one \n two\r\n \n\n three")
    options = CorpusOptions(column="mine", whole_documents=whole)
    make_corpus(sorted(tmp_path.iterdir()), tmp_path / "made", options)
    expected = [*rows, ["one ", " two"], [" three"]]
    found = [*read_documents(Corpus(tmp_path / "made").training)]
    assert found == (
        expected if whole else [[*filter(None, map(str.strip, lines))] for lines in expected]
    )


def test_words_of_a_part_are_counted_where_there_are_many(tmp_path, text_file, monkeypatch):
    monkeypatch.setattr("ds_minimodel.text.reader.CHUNK_BYTES", 5000)
    monkeypatch.setattr("ds_minimodel.text.corpus.COUNTED_BYTES", 40_000)
    make_corpus([text_file], tmp_path / "made", CorpusOptions())
    made = Corpus(tmp_path / "made")
    of_words = sum(len(word.encode()) * times for word, times in made.words().items())
    assert 30_000 < of_words < made.facts.counted <= 40_000
    assert made.share_counted == pytest.approx(40_000 / text_file.stat().st_size, rel=0.2)


def test_short_documents_are_dropped_and_repeated_lines_are_counted(tmp_path):
    (path := tmp_path / "text.txt").write_text(
        "one two\nthree\n\none two three four\n\nfive\n\none two\nthree\n"
    )
    make_corpus([path], tmp_path / "made", CorpusOptions(min_words=3))
    facts = Corpus(tmp_path / "made").facts
    assert facts.documents == [3, 0]
    assert facts.dropped == 1
    assert facts.repeated_lines == 0.4
    assert Corpus(tmp_path / "made").words() == Counter(
        {"one": 3, " two": 3, "three": 2, " three": 1, " four": 1}
    )
    with refuses(r"text.txt: no document is left \(4 have fewer than min_words=9 words, 0 are"):
        make_corpus([path], tmp_path / "none", CorpusOptions(min_words=9))
    path.write_bytes(b"one\n\xff\n")
    with refuses("text.txt:2: not UTF-8"):
        make_corpus([path], tmp_path / "none", CorpusOptions())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("most", [60_000, 400])
def test_what_is_scored_is_of_all_files_without_lines_of_many_pages(tmp_path, monkeypatch, most):
    monkeypatch.setattr("ds_minimodel.pipeline.steps.corpus.TEST_BYTES", most)
    pages = [["Home", f'{{"Page": {index}}}', "Help"] for index in range(200)]
    rows = [json.dumps({"text": "\n".join(page)}) + "\n" for page in pages]
    (tmp_path / "a.jsonl").write_text("".join(rows[:100]))
    (tmp_path / "b.jsonl").write_text("".join(rows[100:]))
    make_corpus(
        [tmp_path / "a.jsonl", tmp_path / "b.jsonl"],
        WorkdirLayout(tmp_path).corpus("xx"),
        CorpusOptions(held_out=SHARE),
    )
    task = SimpleNamespace(test={"xx": tmp_path / "test.txt"})
    said = []
    (tmp_path / "test.txt.tmp12345").write_text("of a call that was killed")
    write_tests(
        SimpleNamespace(workdir=tmp_path, finetune=SimpleNamespace(tasks={"bits": task})),
        said.append,
    )
    assert not [*tmp_path.glob("*.tmp*")]
    scored = [line for line in (tmp_path / "test.txt").read_text().splitlines() if line]
    held_out = [page[1] for page in pages if is_held_out(page, SHARE)]
    assert "2 lines that stand" in said[0]
    assert sorted(scored) == sorted(held_out) or most < 1000
    assert sum(int(line[9:-1]) < 100 for line in scored) == pytest.approx(
        len(scored) / 2, abs=0.2 * len(scored)
    )
