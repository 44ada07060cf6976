"""What a user reads has the words of CONTRIBUTING.md's table, and none that they replace."""

import ast
import re

import pytest

from .docs import ROOT

TABLE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Words in use")[2].partition("\n## ")[0]
CELLS = [
    re.sub(r"\(.*\)", "", line.split("|")[2])
    for line in TABLE.splitlines()
    if line.startswith("| ")
][1:]
OLD = re.compile(
    rf"\b({'|'.join(word.strip() for cell in CELLS for word in cell.split(','))})\b", re.IGNORECASE
)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "study").glob("*/*/README.md")),
]
CODE = re.compile(r"(?ms)^```.*?^```|`[^`]*`|\]\([^)]*\)")  # and targets of links


def strings(source):
    """Literals that are sentences, among them all of `--help`; docstrings are for readers of the
    code.
    """
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    literals = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in docstrings
    )
    yield from (
        node.value for node in literals if isinstance(node.value, str) and " " in node.value
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_the_words_in_use(page):
    assert [found[0] for found in OLD.finditer(CODE.sub("", page.read_text()))] == []


def test_messages_and_help_have_the_words_in_use():
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / "ds_minimodel").rglob("*.py")
        for text in strings(path.read_text())
        if OLD.search(text)
    }
    assert found == set()


def test_the_table_is_read():
    assert len(CELLS) > 8
    assert OLD.search("It mends none, but stale PIECES.")
    assert not OLD.search("SentencePiece")
