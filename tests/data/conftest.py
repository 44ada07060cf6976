"""Text in several scripts, drawn from word lists, and what is made from it: a vocabulary, a
store.
"""

import random

import pytest

from ds_minimodel.common.files import write_manifest
from ds_minimodel.data.prepare import StoreText, prepare
from ds_minimodel.data.store import TokenStore, write_shard
from ds_minimodel.tokenizers.tokenizer import open_tokenizer, trained_layout
from ds_minimodel.tokenizers.tokenizer_training import train_tokenizer

ALPHABETS = {
    "latin": "abcdefghijklmnoprstuvwzäöüßéç",
    "greek": "αβγδεζηθικλμνξοπρστυφχψωάέή",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщыьэюя",
    "thai": "กขคงจฉชซญดตถทนบปผพฟมยรลวสหอ",
    "han": "一二三四五六七八九十人口手足山川日月水火木金土大小中上下左右天地",
}
VOCAB_SIZE = 600
SHARD_BYTES = 30_000
# The hash of a tokenizer that does not exist.
HASH = "ab" * 32


def make_words(draw, alphabet, count=250):
    return ["".join(draw.choices(alphabet, k=draw.randint(1, 7))) for _ in range(count)]


def make_corpus(num_documents, seed=0):
    """Documents (lists of lines), each in one script, its words as unequal in frequency as real
    ones.
    """
    draw = random.Random(seed)
    scripts = [
        (make_words(draw, alphabet), "" if name in ("thai", "han") else " ")
        for name, alphabet in ALPHABETS.items()
    ]
    weights = [1 / (rank + 1) for rank in range(250)]
    corpus = []
    for _ in range(num_documents):
        words, space = draw.choice(scripts)
        corpus.append(
            [
                space.join(draw.choices(words, weights, k=draw.randint(2, 14))) + "."
                for _ in range(draw.randint(1, 9))
            ]
        )
    return corpus


def write_corpus(path, corpus):
    path.write_text("\n\n".join("\n".join(lines) for lines in corpus) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus():
    return make_corpus(600)


@pytest.fixture(scope="session")
def text_file(corpus, tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text") / "text.txt", corpus)


@pytest.fixture(scope="session")
def tokenizer_folder(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    train_tokenizer(
        [text_file], folder, VOCAB_SIZE, character_coverage=0.9998, input_sentences=5000
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return open_tokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def byte_folder(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "bytes"
    train_tokenizer([text_file], folder, VOCAB_SIZE, 0.9998, 5000, kind="byte-bpe")
    return folder


@pytest.fixture(scope="session")
def store_folder(text_file, tokenizer_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store") / "store"
    prepare(StoreText([text_file]), tokenizer_folder, folder, shard_bytes=SHARD_BYTES)
    return folder


@pytest.fixture(scope="session")
def reference(text_file, tokenizer_folder, tmp_path_factory):
    """The store of small chunks that every other way of preparing them must equal."""
    out = tmp_path_factory.mktemp("reference") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ds_minimodel.text.reader.CHUNK_BYTES", 5000)
        prepare(StoreText([text_file]), tokenizer_folder, out, shard_bytes=SHARD_BYTES)
    return out


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("ds_minimodel.text.reader.CHUNK_BYTES", 5000)


def make_store(folder, shards, vocab_size=VOCAB_SIZE, **facts):
    """A store; `shards`: for each one a list of documents, each a list of ids. facts: of its
    manifest.
    """
    folder.mkdir()
    for number, documents in enumerate(shards):
        with write_shard(folder, number, vocab_size, HASH) as add:
            for ids in documents:
                add(ids, [len(ids)])
    facts |= {"shards": len(shards), "tokenizer_sha256": HASH, **trained_layout(vocab_size).facts()}
    write_manifest(folder, kind="token_store", **facts)
    return folder


def content(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="session")
def store(store_folder):
    return TokenStore(store_folder)
