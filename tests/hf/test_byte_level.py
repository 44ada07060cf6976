"""The byte-level vocabulary keeps the promises of vocabulary/tokenizer.py."""

import json

import pytest

from ds_minimodel.artifacts.base import refer
from ds_minimodel.vocabulary.tokenizer import open_tokenizer

from .conftest import TEXTS


@pytest.fixture(scope="module")
def pack(roberta, tmp_path_factory):
    out = tmp_path_factory.mktemp("byte-level") / "out"
    refer(roberta, out)
    return out / "tokenizer"


def test_offsets(pack):
    tokenizer = open_tokenizer(pack)
    for text in TEXTS:
        ids, spans = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode([text])[0]
        for id, (start, end) in zip(ids, spans, strict=True):
            piece = tokenizer.pieces()[id]
            assert not text[start:end].startswith(" ")
            if not piece.startswith("<0x"):
                assert piece.lstrip("▁") == text[start:end]
        covered = {position for span in spans for position in range(*span)}
        assert covered == {position for position, character in enumerate(text) if not character.isspace()}


def test_pieces_are_spelt_as_text(pack, roberta):
    pieces = open_tokenizer(pack).pieces()
    assert len(pieces) == len(set(pieces)) and pieces[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert pieces[-1] == "<mask>" and "▁" in pieces and "<0xE2>" in pieces
    theirs = json.loads((roberta / "vocab.json").read_text())
    assert pieces[theirs["Ġт"]] == "▁т" if "Ġт" in theirs else pieces[theirs["Ñ"]] == "<0xD1>"
