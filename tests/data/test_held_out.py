"""Held-out documents: which ones they are, and the bytes of text that their tokens stand for."""

import pytest

from ds_minimodel.data.prepare import prepare
from ds_minimodel.data.samples import HELD_OUT, bytes_of_ids
from ds_minimodel.data.store import TokenStore
from ds_minimodel.text.corpus import Corpus, is_held_out, make_corpus
from ds_minimodel.vocabulary.tokenizer import open_tokenizer

pytestmark = pytest.mark.usefixtures("small_chunks")
SHARE = 0.2


def documents(folder):
    store = TokenStore(folder)
    return [tuple(store.read(*store.document(number))) for number in range(store.num_documents)]


def test_every_document_is_in_one_of_the_two_stores(tmp_path, text_file, tokenizer_folder, store_folder, corpus):
    make_corpus([text_file], tmp_path / "corpus", held_out=SHARE)
    made, divided = Corpus(tmp_path / "corpus"), tmp_path / "store"
    prepare(made.training, tokenizer_folder, divided, shard_bytes=30_000, held_out=made.held_out)
    training, held_out = documents(divided), documents(divided / HELD_OUT)
    chosen = [is_held_out(lines, SHARE) for lines in corpus]
    assert [document for document, held in zip(documents(store_folder), chosen) if held] == held_out
    assert [document for document, held in zip(documents(store_folder), chosen) if not held] == training
    assert 0.15 * len(corpus) < len(held_out) < 0.25 * len(corpus)
    assert TokenStore(divided).tokenizer_sha256 == TokenStore(divided / HELD_OUT).tokenizer_sha256
    assert not (store_folder / HELD_OUT).exists()


def test_tokens_stand_for_the_bytes_of_the_text(corpus, tokenizer_folder):
    """And for a space before each line, which SentencePiece adds."""
    tokenizer = open_tokenizer(tokenizer_folder)
    sizes = bytes_of_ids(tokenizer)
    unknown = tokenizer.vocabulary.require("unk", "this test")
    for line, ids in zip(corpus[0], tokenizer.encode(corpus[0])):
        assert unknown not in ids and sizes[ids].sum() == len(line.encode()) + 1
    special = tokenizer.vocabulary
    assert sizes[[special.bos, special.pad, special.eos, special.unk, special.mask]].tolist() == [0, 0, 1, 0, 0]
