"""Static vectors: files read or refused by line, vectors of pieces."""

import gzip

import numpy as np
import pytest

from ds_minimodel.common.errors import UserError
from ds_minimodel.tokenizers.tokenizer import open_tokenizer
from ds_minimodel.tokenizers.vectors import WordVectors, piece_vectors, read_vectors


def write(path, text):
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("suffix, compress", [("", bytes), (".gz", gzip.compress)])
def test_a_file_of_vectors(tmp_path, suffix, compress):
    path = tmp_path / f"en.vec{suffix}"
    path.write_bytes(compress("3 2\nthe 1 -2.5 \n\u00a0of 0.5 1e-3\nyork 3 4\n".encode()))
    words = read_vectors(path)
    assert words.words == ["the", "\u00a0of", "york"]
    assert read_vectors(path, 1).words == ["the"]
    np.testing.assert_array_equal(
        words.vectors, np.array([[1, -2.5], [0.5, 1e-3], [3, 4]], np.float32)
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "en.vec: not vectors in fastText's text form"),
        ("2 2\na 1 2\nb 3 4 5\n", "line 3: 'b' has not"),
        ("2 2\na 1 2\n", "1 of 2 words are there"),
        ("2 2\na 1 2\nb 1 nan\n", "line 3: 'b' has not 2 finite numbers"),
    ],
)
def test_malformed_vectors(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as error:
        read_vectors(write(tmp_path / "en.vec", text))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="none.vec: no such file"):
        read_vectors(tmp_path / "none.vec")


def test_vectors_of_pieces(tokenizer_folder, corpus, monkeypatch):
    monkeypatch.setattr("ds_minimodel.tokenizers.vectors._CHUNK", 7)
    tokenizer = open_tokenizer(tokenizer_folder)
    words = list(
        dict.fromkeys(
            word for document in corpus[:40] for line in document for word in line.split()
        )
    )[:60]
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
