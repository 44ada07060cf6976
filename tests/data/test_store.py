"""Token stores: what is written is read back across shards; a wrong file is refused."""

import os
import resource

import numpy as np
import pytest

from ds_minimodel.data.store import Reader, TokenStore, id_type
from tests.helpers.refusals import refuses

from .conftest import HASH, make_store


def random_shards(vocab_size):
    draw = np.random.default_rng(0)
    return [
        [draw.integers(0, vocab_size, draw.integers(1, 30)).tolist() for _ in range(size)]
        for size in (7, 1, 0, 20, 3)
    ]


@pytest.mark.parametrize("vocab_size, id_bytes", [(600, 2), (65536, 2), (65537, 4), (250_000, 4)])
def test_tokens_and_documents_are_read_back_across_shards(tmp_path, vocab_size, id_bytes):
    shards = random_shards(vocab_size)
    docs = [doc for shard in shards for doc in shard]
    tokens = [id for doc in docs for id in doc]
    store = TokenStore(make_store(tmp_path / "store", shards, vocab_size), HASH)
    assert store.num_tokens == len(tokens)
    assert store.num_documents == len(docs)
    assert store.read(0, 1).dtype.itemsize == id_type(vocab_size).itemsize == id_bytes
    assert [store.read(*store.document(number)).tolist() for number in range(len(docs))] == docs
    for start in range(0, len(tokens) + 1, 5):
        for stop in range(start, len(tokens) + 1, 7):
            assert store.read(start, stop).tolist() == tokens[start:stop]


@pytest.fixture
def limit():
    """How many files this process may open for now: few more than it has open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = 2 * (len(os.listdir("/proc/self/fd")) + 16)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    yield lower
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_stays_open_until_it_is_read_though_another_thread_opens_many(
    tmp_path, limit, monkeypatch
):
    paths = [tmp_path / f"{number}.bin" for number in range(limit)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number % 256]))
    reader = Reader()
    pread = os.pread
    first, *others = map(reader.of, paths)

    def overtaken(*given):
        monkeypatch.setattr(os, "pread", pread)
        assert [read(0, 1)[0] for read in others] == [number % 256 for number in range(1, limit)]
        return pread(*given)

    monkeypatch.setattr(os, "pread", overtaken)
    assert first(0, 1) == b"\0"


def test_a_store_that_shrinks_or_vanishes_under_a_reader_is_one_line(tmp_path):
    folder = make_store(tmp_path / "store", random_shards(600))
    store = TokenStore(folder)
    (folder / "00003.bin").write_bytes(b"")
    with refuses(r"00003.bin: shorter than it was; put it back"):
        store.read(0, store.num_tokens)
    store = TokenStore(make_store(tmp_path / "other", random_shards(600)))
    (tmp_path / "other/00000.bin").unlink()
    with refuses(r"00000.bin: cannot be read \(No such file"):
        store.read(0, 5)


# Of the magic, the version, the bytes of an id, the vocabulary's size, the tokenizer's hash.
@pytest.mark.parametrize("offset", [0, 8, 12, 16, 40])
def test_a_header_of_another_store_is_refused(tmp_path, offset):
    folder = make_store(tmp_path / "store", random_shards(600))
    header = bytearray((folder / "00003.idx").read_bytes())
    header[offset] = 7
    (folder / "00003.idx").write_bytes(header)
    with refuses("00003.idx: not of this store"):
        TokenStore(folder)


def test_another_tokenizer_is_refused(tmp_path):
    folder = make_store(tmp_path / "store", random_shards(600))
    with refuses("store: made with another tokenizer"):
        TokenStore(folder, "cd" * 32)
