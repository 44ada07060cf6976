"""Vocabularies: which ids are special, and what is said where one is missing."""

import ast
from pathlib import Path

import numpy as np
import pytest

import ds_minimodel
from ds_minimodel.common.files import read_artifact, write_manifest
from ds_minimodel.common.vocabulary import IGNORED, Vocabulary, VocabularyManifest
from tests.helpers.refusals import refuses

PACKAGE = Path(ds_minimodel.__file__).parent
GPT_2 = Vocabulary(100, bos=50, eos=50, unk=50, name="gpt2")


def test_a_missing_token_is_named_with_what_needs_it():
    assert GPT_2.require("eos", "text") == 50
    message = r"^gpt2: has no mask token \(mask\), which masked language modelling needs$"
    with refuses(message):
        GPT_2.require("mask", "masked language modelling")


def test_a_text_stands_between_the_tokens_that_there_are():
    assert Vocabulary(9, 0, 2).frame == ([0], [2])
    assert Vocabulary(9, bos=4).frame == ([4], [])
    assert Vocabulary(9).frame == ([], [])


def test_what_a_vocabulary_loses_is_said_with_what_needs_it():
    GPT_2.require_lossless("generation")
    bert = Vocabulary(9, roundtrip_counterexample="it lowers letters", name="bert")
    message = "^bert: it lowers letters, and generation needs .* tokenizer.kind byte-bpe"
    with refuses(message):
        bert.require_lossless("generation")


@pytest.mark.parametrize(
    "vocabulary",
    [
        GPT_2,
        Vocabulary(9),
        Vocabulary(9, bos=0, eos=2, pad=1, unk=3, mask=8),
        Vocabulary(9, bos=4, eos=5, pad=3),
    ],
)
def test_pieces_are_all_ids_that_are_not_special(vocabulary):
    ids = vocabulary.pieces(np.arange(vocabulary.num_pieces))
    assert sorted([*ids, *vocabulary.special_ids]) == list(range(vocabulary.size))


@pytest.mark.parametrize(
    "ids, words",
    [
        ({"mask": 9}, "special.mask: 9 is not among the 9 ids"),
        ({"eos": 3, "pad": 3}, "special.pad: 3 is the id of another special token too"),
    ],
)
def test_a_manifest_whose_ids_cannot_be(tmp_path, ids, words):
    (tmp_path / "tokenizer.json").write_text("{}")
    write_manifest(tmp_path, vocab_size=9, special=ids, roundtrip_counterexample=None)
    with refuses(words):
        read_artifact(tmp_path, VocabularyManifest)


def test_the_ignored_target_is_declared_once():
    def is_ignored(node):
        return isinstance(node, ast.UnaryOp) and ast.unparse(node) == str(IGNORED)

    found = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        if any(map(is_ignored, ast.walk(tree))):
            found.append(path)
    assert found == [PACKAGE / "common/vocabulary.py"]


def test_a_text_is_read_after_what_begins_it_or_ended_the_one_before():
    assert Vocabulary(9, bos=1, eos=2).bounds("a task") == (1, 2)
    assert Vocabulary(9, eos=2).bounds("a task") == (2, 2)
    assert Vocabulary(9, eos=2).start == 2
    with refuses("has no token that ends a text .eos., which a task needs"):
        Vocabulary(9, bos=1).bounds("a task")
