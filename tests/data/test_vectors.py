"""Static vectors: files read or refused by line, languages turned into one space, vectors of pieces."""

import gzip
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.vectors import (
    WordVectors,
    align,
    piece_vectors,
    read_dictionary,
    read_size,
    read_vectors,
    train_piece_vectors,
)

pytest.importorskip("gensim", reason="gensim is not installed (pip install 'ds_minimodel[focus]')")


def write(path, text):
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("suffix, compress", [("", bytes), (".gz", gzip.compress)])
def test_a_file_of_vectors(tmp_path, monkeypatch, suffix, compress):
    path = tmp_path / f"en.vec{suffix}"
    path.write_bytes(compress("3 2\nthe 1 -2.5 \n\u00a0of 0.5 1e-3\nyork 3 4\n".encode()))
    words = read_vectors(path)
    assert words.words == ["the", "\u00a0of", "york"] and read_size(path) == 2
    np.testing.assert_array_equal(words.vectors, np.array([[1, -2.5], [0.5, 1e-3], [3, 4]], np.float32))
    monkeypatch.setattr("ds_minimodel.data.vectors.MAX_WORDS", 2)
    assert read_vectors(path).words == words.words[:2]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "en.vec: not vectors in fastText's text form"),
        ("2 2\na 1 2\nb 3 4 5\n", "en.vec: not vectors"),
        ("2 2\na 1 2\n", "en.vec: not vectors .*unexpected end"),
        ("2 2\na 1 2\nb 1 nan\n", "en.vec: the vector of 'b' is not 2 finite numbers"),
        ("2 2\na 1 2\nb 1\n", "en.vec: the vector of 'b' is not 2 finite numbers"),
    ],
)
def test_malformed_vectors(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as error:
        read_vectors(write(tmp_path / "en.vec", text))
    assert "\n" not in str(error.value)


def test_dictionaries(tmp_path):
    path = write(tmp_path / "de.txt", "house\tHaus\nnew york\tNeu Amsterdam\n\ndog Hund\n")
    assert read_dictionary(path) == [("house", "Haus"), ("new york", "Neu Amsterdam"), ("dog", "Hund")]
    with pytest.raises(UserError, match="de.txt:2: 3 words where two are expected"):
        read_dictionary(write(path, "house Haus\na b c\n"))
    for read in (read_dictionary, read_vectors):
        with pytest.raises(UserError, match="none.txt: no such file"):
            read(tmp_path / "none.txt")


def test_a_dictionary_turns_one_space_into_the_other():
    draw = np.random.default_rng(0)
    source = WordVectors([f"w{number}" for number in range(50)], draw.normal(size=(50, 6)).astype(np.float32))
    rotation, _ = np.linalg.qr(draw.normal(size=(6, 6)))
    target = WordVectors([f"x{number}" for number in range(50)], (source.vectors @ rotation).astype(np.float32))
    pairs = [(f"W{number}", f"X{number}") for number in range(20)] + [("unknown", "X1")]  # found in lower case
    np.testing.assert_allclose(align(source, target, pairs, "de.txt"), rotation, atol=1e-5)
    with pytest.raises(UserError, match="de.txt: none of its pairs"):
        align(source, target, [("house", "Haus")], "de.txt")


def test_vectors_of_pieces(tokenizer_folder, corpus, monkeypatch):
    monkeypatch.setattr("ds_minimodel.data.vectors._CHUNK", 7)
    tokenizer = open_tokenizer(tokenizer_folder)
    words = list(dict.fromkeys(word for document in corpus[:40] for line in document for word in line.split()))[:60]
    vectors = np.random.default_rng(0).normal(size=(len(words), 5)).astype(np.float32)
    found = piece_vectors(tokenizer, WordVectors(words, vectors))
    uses = {}
    for rank, word in enumerate(words, 1):
        for text in (word, f" {word}"):
            for id in set(tokenizer.encode([text])[0]):
                uses.setdefault(id, []).append((1 / rank, vectors[rank - 1]))
    assert 20 < len(uses) < tokenizer.vocabulary.size
    for id, row in enumerate(found):
        weights, rows = zip(*uses.get(id, [(1, np.zeros(5))]))
        np.testing.assert_allclose(row, np.average(rows, axis=0, weights=weights), atol=1e-6)


SCRIPT = """
import hashlib, sys
from ds_minimodel.data.store import TokenStore
from ds_minimodel.data.tokenizer import open_tokenizer
from ds_minimodel.data.vectors import train_piece_vectors
vectors = train_piece_vectors(TokenStore(sys.argv[1]), open_tokenizer(sys.argv[2]), seed=1)
print(hashlib.sha256(vectors.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def trained(store, tokenizer_folder):
    return train_piece_vectors(store, open_tokenizer(tokenizer_folder), seed=1)


def test_trained_vectors(trained, store, tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder)
    tokens = store.read(0, store.num_tokens)
    counts = np.bincount(tokens[tokens != 2], minlength=tokenizer.vocabulary.size)
    assert (trained.any(1) == (counts >= 10)).all() and 100 < trained.any(1).sum() < tokenizer.vocabulary.size
    # Words of one script stand together in this text, so their vectors are alike.
    unit = trained / np.maximum(np.linalg.norm(trained, axis=1, keepdims=True), 1e-9)
    pieces = tokenizer.pieces()
    greek, thai = (
        [
            id
            for id, piece in enumerate(pieces)
            if trained[id].any() and any(low <= character <= high for character in piece)
        ]
        for low, high in (("α", "ω"), ("ก", "ฮ"))
    )
    assert (unit[greek] @ unit[greek].T).mean() > (unit[greek] @ unit[thai].T).mean()


def test_training_vectors_gives_the_same_bits_in_every_process(trained, store_folder, tokenizer_folder):
    """In another process strings have other hashes."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, store_folder, tokenizer_folder],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert done.stdout.strip() == hashlib.sha256(trained.tobytes()).hexdigest()


def test_without_gensim(store, tokenizer_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(UserError, match=r"pip install 'ds_minimodel\[focus\]'"):
        train_piece_vectors(store, open_tokenizer(tokenizer_folder), seed=1)
