"""Held-out documents: which ones they are, and the bytes of text that their tokens stand for."""

import random

import pytest

from ds_minimodel.data.prepare import prepare
from ds_minimodel.data.samples import HELD_OUT, bytes_of_ids
from ds_minimodel.data.store import TokenStore
from ds_minimodel.text.corpus import Corpus, is_held_out, make_corpus
from ds_minimodel.vocabulary.tokenizer import open_tokenizer

from .conftest import write_corpus

pytestmark = pytest.mark.usefixtures("small_chunks")
SHARE = 0.2


def documents(folder):
    store = TokenStore(folder)
    return [tuple(store.read(*store.document(number))) for number in range(store.num_documents)]


@pytest.fixture
def divided(tmp_path, text_file, tokenizer_folder):
    """A store with one of held-out documents, of several shards."""
    return prepared(text_file, tokenizer_folder, tmp_path / "store")


def prepared(text_file, tokenizer_folder, out, **options):
    make_corpus([text_file], folder := out.with_suffix(".corpus"), held_out=SHARE)
    corpus = Corpus(folder)
    prepare(corpus.training, tokenizer_folder, out, shard_bytes=30_000, held_out=corpus.held_out, **options)
    return out


def test_every_document_is_in_one_of_the_two_stores(divided, store_folder, corpus):
    training, held_out = documents(divided), documents(divided / HELD_OUT)
    chosen = [is_held_out(lines, SHARE) for lines in corpus]
    assert [document for document, held in zip(documents(store_folder), chosen) if held] == held_out
    assert [document for document, held in zip(documents(store_folder), chosen) if not held] == training
    assert 0.15 * len(corpus) < len(held_out) < 0.25 * len(corpus)
    assert TokenStore(divided).tokenizer_sha256 == TokenStore(divided / HELD_OUT).tokenizer_sha256
    assert not (store_folder / HELD_OUT).exists()


def test_the_order_of_the_documents_changes_nothing(tmp_path, divided, corpus, tokenizer_folder):
    shuffled = write_corpus(tmp_path / "shuffled.txt", random.Random(1).sample(corpus, len(corpus)))
    prepared(shuffled, tokenizer_folder, tmp_path / "other")
    assert sorted(documents(tmp_path / "other" / HELD_OUT)) == sorted(documents(divided / HELD_OUT))


def test_tokens_stand_for_the_bytes_of_the_text(corpus, tokenizer_folder):
    """And for a space before each line, which SentencePiece adds."""
    tokenizer = open_tokenizer(tokenizer_folder)
    sizes = bytes_of_ids(tokenizer)
    unknown = tokenizer.vocabulary.require("unk", "this test")
    for line, ids in zip(corpus[0], tokenizer.encode(corpus[0])):
        assert unknown not in ids and sizes[ids].sum() == len(line.encode()) + 1
    special = tokenizer.vocabulary
    assert sizes[[special.bos, special.pad, special.eos, special.unk, special.mask]].tolist() == [0, 0, 1, 0, 0]
