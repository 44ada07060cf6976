"""What a kind of task is, is said in tasks/ alone."""

import ast
from pathlib import Path

from ds_minimodel.tasks import KINDS

PACKAGE = Path(__file__).parents[2] / "ds_minimodel"


def test_job_records_hold_the_keys_of_the_tasks_kind():
    own = {
        "sentence-pair": {"labels", "columns", "test_columns"},
        "qa": {"question_length", "stride", "answer_length", "metric"},
    }
    for kind, keys in own.items():
        recorded = KINDS[kind].config(kind=kind, train=__file__, test={}).recorded()
        assert recorded.keys() == keys | {"kind", "train", "test", "lr", "epochs", "batch_size", "max_length"}


def kinds_named(tree):
    """Line of each comparison with a kind's name, and of each table by kind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            found = node.keys
        else:
            continue
        names = KINDS.keys()
        if any(isinstance(part, ast.Constant) and part.value in names for part in found):
            yield node.lineno


def test_nothing_outside_branches_on_a_kind():
    assert list(kinds_named(ast.parse("a = {'qa': 1}\nb = kind == 'sentence-pair'\nc = kind in KINDS"))) == [1, 2]
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "tasks"]
    assert len(files) > 50
    assert [f"{path}:{line}" for path in files for line in kinds_named(ast.parse(path.read_text()))] == []
