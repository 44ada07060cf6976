"""The special tokens: their ids, and that nothing but common/vocabulary.py declares them."""

import ast
from pathlib import Path

import ds_minimodel
from ds_minimodel.common.vocabulary import BOS, EOS, IGNORED, MASK, PAD, SPECIAL, UNK, mask_id, special_ids

PACKAGE = Path(ds_minimodel.__file__).parent


def places(holds):
    """Files of the package with a node of their syntax tree for which `holds(node)`."""
    return {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(holds(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }


def test_ids_are_fairseqs():
    assert dict(zip(SPECIAL, (BOS, PAD, EOS, UNK))) == {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    assert mask_id(50) == 49 and special_ids(50) == [0, 1, 2, 3, 49]


def test_the_ignored_target_is_declared_once():
    def is_ignored(node):
        return isinstance(node, ast.UnaryOp) and ast.unparse(node) == str(IGNORED)

    assert places(is_ignored) == {"common/vocabulary.py"}


def test_special_tokens_are_spelt_once():
    def is_spelling(node):
        return isinstance(node, ast.Constant) and node.value in (*SPECIAL, MASK)

    assert places(is_spelling) == {"common/vocabulary.py"}


def test_one_function_zeroes_the_padding_row():
    def is_padding_row(node):
        return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and ast.unparse(node.slice) == "PAD"

    assert places(is_padding_row) == {"model/transformer.py"}
