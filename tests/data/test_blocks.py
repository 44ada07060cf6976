"""Block building against a plain packer that goes sentence by sentence, and the table on disk."""

import numpy as np
import pytest

from ds_minimodel.data import samples as blocks
from ds_minimodel.data.samples import BlockTable
from ds_minimodel.data.store import TokenStore
from tests.helpers.refusals import refuses

from .conftest import make_store

EOS = 2


@pytest.fixture(autouse=True)
def fresh_tables(store):
    yield
    for path in store.folder.parent.glob("*.blocks"):
        path.unlink()


def sentences_of(tokens):
    """(start, stop) of each sentence, the lone </s> after a document being one."""
    stops = [index + 1 for index, id in enumerate(tokens) if id == EOS]
    return list(zip([0, *stops[:-1]], stops))


def packed(store, limit, within_documents):
    """The definition, one sentence at a time."""
    result = []
    start = 0
    stop = 0

    def close(next_start):
        nonlocal start, stop
        if stop - start > 1:
            result.append((start, stop - start))
        start = next_start
        stop = next_start

    for first, last in sentences_of(store.read(0, store.num_tokens).tolist()):
        if within_documents and last - first == 1:
            close(last)
            continue
        # A long sentence is cut as if it were several.
        for cut in range(first, last, limit):
            end = min(cut + limit, last)
            if end - start > limit:
                close(cut)
            stop = end
    close(stop)
    return result


def table_of(store, mode, seq_length):
    table = BlockTable(store, mode, seq_length)
    starts, lengths = (part.tolist() for part in table.spans(np.arange(len(table))))
    return list(zip(starts, lengths))


def store_of(folder, docs, *, whole=False):
    """`docs` as lists of sentence lengths, </s> included; `whole`: without the </s> of blank
    lines.
    """
    ids = [
        [id for size in doc for id in [7] * (size - 1) + [EOS]] + [EOS] * (not whole)
        for doc in docs
    ]
    return TokenStore(make_store(folder, [ids], whole_documents=whole))


@pytest.mark.parametrize("seq_length", [3, 9, 17, 64, 512, 5000])
@pytest.mark.parametrize("mode", ["complete", "complete_doc"])
def test_tables_equal_the_definition(store, monkeypatch, mode, seq_length):
    expected = packed(store, seq_length - 1, mode == "complete_doc")
    assert table_of(store, mode, seq_length) == expected
    for path in store.folder.parent.glob("*.blocks"):
        path.unlink()
    monkeypatch.setattr(blocks, "CHUNK_TOKENS", seq_length + 3)
    assert table_of(store, mode, seq_length) == expected


def test_hand_made_example(tmp_path):
    store = store_of(tmp_path / "store", [[4, 3, 3], [2], [25, 3], [5]])
    # sentences at 0 4 7 | 10; 11 | 13; 14 39 | 42; 43 | 48
    assert table_of(store, "complete", 11) == [
        (0, 10),
        (10, 4),
        (14, 10),
        (24, 10),
        (34, 9),
        (43, 6),
    ]
    assert table_of(store, "complete_doc", 11) == [
        (0, 10),
        (11, 2),
        (14, 10),
        (24, 10),
        (34, 8),
        (43, 5),
    ]
    assert table_of(store, "none", 11) == [(0, 10), (10, 10), (20, 10), (30, 10), (40, 9)]


def test_whole_documents_are_sentences_without_blank_lines(tmp_path):
    store = store_of(tmp_path / "store", [[4], [2], [25], [3]], whole=True)
    assert table_of(store, "complete", 11) == [(0, 6), (6, 10), (16, 10), (26, 8)]
    assert table_of(store, "complete_doc", 11) == [
        (0, 4),
        (4, 2),
        (6, 10),
        (16, 10),
        (26, 5),
        (31, 3),
    ]


def test_a_whole_document_ends_where_it_ends_whatever_it_holds(tmp_path, monkeypatch):
    """Dialogues have ends of texts inside them, and may be cut off; two shards, chunks shorter than
    all.
    """
    shards = [[7, 7, EOS, 7, 7], [7, 7, 7]], [[7] * 12, [EOS, 7, EOS]]
    store = TokenStore(make_store(tmp_path / "store", shards, whole_documents=True))
    assert store.document_ends(0, 23).tolist() == [5, 8, 20, 23]
    assert store.document_ends(5, 20).tolist() == [8, 20]
    for chunk in (blocks.CHUNK_TOKENS, 12):
        monkeypatch.setattr(blocks, "CHUNK_TOKENS", chunk)
        assert table_of(store, "complete_doc", 11) == [(0, 5), (5, 3), (8, 10), (18, 2), (20, 3)]
        assert table_of(store, "complete", 11) == [(0, 8), (8, 10), (18, 5)]
        for path in tmp_path.glob("*.blocks"):
            path.unlink()


def test_a_table_is_built_once(store, monkeypatch):
    first = table_of(store, "complete", 64)
    monkeypatch.setattr(store, "read", None)
    assert table_of(store, "complete", 64) == first
    with pytest.raises(TypeError):
        table_of(store, "complete", 65)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-12], lambda data: data[:400] + b"?" + data[401:], lambda _: b""]
)
def test_damaged_tables_are_refused(store, damage):
    BlockTable(store, "complete", 64)
    [path] = store.folder.parent.glob("*.blocks")
    path.write_bytes(damage(path.read_bytes()))
    with refuses("damaged table of blocks; delete it, it is built again"):
        BlockTable(store, "complete", 64)


def test_a_store_of_no_text_is_refused(tmp_path):
    with refuses("holds no text"):
        BlockTable(store_of(tmp_path / "store", []), "complete", 64)
